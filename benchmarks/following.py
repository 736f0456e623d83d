"""Many followers of one file while another process writes it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil

import runstore
from benchmarks import _data, _limit
from benchmarks._measure import Bench, alternate
from benchmarks._row import Row, Sample, Unit

__all__ = ["many_followers"]

FOLLOWERS = 200
PEER_INTERVAL = 0.25
RECORDS_A_SECOND = 2_500

# Called with the records that a follower gets.
Seen = Callable[[list[dict[str, Any]]], None]


def many_followers(bench: Bench) -> list[Row]:
    """200 followers that start at the end of the file, and 10,000 records from another process.

    The peer has no followers: 200 tasks poll its stores, one each.
    """
    count = bench.scale.count(10_000)
    followers = min(bench.scale.count(10 * FOLLOWERS), FOLLOWERS)
    readings: dict[str, list[float]] = {}

    def run(name: str, follow: Callable[[Path, Seen], Coroutine[Any, Any, None]]) -> Callable[[], float]:
        def measured() -> float:
            root = bench.new_folder()
            (root / _data.METRICS).touch()
            seconds, share = asyncio.run(_Audience(bench, root, followers, count).measure(follow))
            readings.setdefault(name, []).append(share)
            shutil.rmtree(root)
            return seconds

        return measured

    contenders = {"runstore": run("runstore", _follow)}
    if (peer := bench.peer) is not None:

        async def poll(root: Path, seen: Seen) -> None:
            store = peer.TrainingRunStore(peer.LocalStorage(root))
            while True:
                seen(await store.aread_new_metrics())
                await asyncio.sleep(PEER_INTERVAL)

        contenders["peer"] = run("peer", poll)
    rounds = min(bench.scale.rounds, 3)
    cpu = alternate(rounds, contenders)
    what = f"of {followers} followers while {count:,} records arrive"
    rows = [Row(f"CPU {what}", Unit.SECONDS, cpu, times_peer=20)]
    if all(any(values) for values in readings.values()):
        bytes_read = {name: Sample(tuple(values[-rounds:])) for name, values in readings.items()}
        rows.append(Row(f"bytes read {what}, over the file's", Unit.TIMES, bytes_read, at_most=1.1))
    return rows


async def _follow(root: Path, seen: Seen) -> None:
    store = runstore.TrainingRunStore(root)
    async for batch in store.afollow_metrics(cursor="end"):
        seen(batch.records)


class _Audience:
    """Followers of one file, from before its first record to after its last."""

    def __init__(self, bench: Bench, root: Path, followers: int, count: int) -> None:
        self._bench = bench
        self._path = root / _data.METRICS
        self._followers = followers
        self._count = count
        self._in_step: set[int] = set()
        self._got = [0] * followers
        self._unfinished = followers
        self._done = asyncio.Event()

    async def measure(self, follow: Callable[[Path, Seen], Awaitable[None]]) -> tuple[float, float]:
        """While the records arrived: this process's CPU seconds, and the bytes it read over the file's."""
        tasks = [
            asyncio.ensure_future(follow(self._path.parent, self._watch(number)))
            for number in range(self._followers)
        ]
        # Records that do not count are written until one has reached each follower.
        while len(self._in_step) < self._followers:
            _limit.append_line(self._path, {"step": -1})
            await asyncio.sleep(0.05)
        seconds, read, size = time.process_time(), _bytes_read(), self._path.stat().st_size
        writer = self._bench.child("_child_append.py", self._path, self._count, RECORDS_A_SECOND)
        await self._done.wait()
        seconds, read = time.process_time() - seconds, _bytes_read() - read
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        with writer:
            pass
        assert self._got == [self._count] * self._followers
        return seconds, read / (self._path.stat().st_size - size)

    def _watch(self, number: int) -> Seen:
        def seen(records: list[dict[str, Any]]) -> None:
            if not records:
                return
            if records[0]["step"] < 0:
                self._in_step.add(number)
                records = [record for record in records if record["step"] >= 0]
            self._got[number] += len(records)
            if records and records[-1]["step"] == self._count - 1:
                self._unfinished -= 1
                if not self._unfinished:
                    self._done.set()

        return seen


def _bytes_read() -> float:
    """Bytes that this process has read through system calls; 0 where the system does not tell."""
    process = psutil.Process()
    return float(process.io_counters().read_chars) if hasattr(process, "io_counters") else 0.0
