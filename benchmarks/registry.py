"""Finding runs: on the disk, and in a bucket with what that asks of it."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import runstore
from benchmarks import _data
from benchmarks._bucket import ONE_WAY, Bucket
from benchmarks._measure import PEER, Bench, alternate
from benchmarks._row import Row, Sample, Unit

__all__ = ["in_bucket", "in_bucket_with_iterations", "on_disk"]

ITERATIONS = 50
DAY = 24 * 60 * 60
# The peer asks for one file after another, the same ones of each run, so that a few runs tell.
PEER_RUNS = 20


def on_disk(bench: Bench) -> list[Row]:
    """`refresh` of 500 runs with 50 iterations each, none of them running; and again with one new run."""
    count, iterations = bench.scale.count(500, 2), bench.scale.count_read(ITERATIONS)
    root = bench.new_folder()
    for number in range(count):
        _write_run(root / f"run-{number:04}", _run(number, iterations))
    again: list[float] = []

    def refresh(package: Any) -> float:
        registry = package.RunRegistry([package.LocalStorage(root)])
        start = time.perf_counter()
        found = registry.refresh()
        seconds = time.perf_counter() - start
        assert len(found) == count
        if package is runstore:
            new = root / "run-new"
            _write_run(new, _run(0, iterations))
            start = time.perf_counter()
            found = registry.refresh()
            again.append((time.perf_counter() - start) / seconds)
            assert len(found) == count + 1
            shutil.rmtree(new)
        return seconds

    samples = bench.compare_packages(refresh, 5)
    shutil.rmtree(root)
    what = f"refresh of {count} runs with {iterations} iterations"
    return [
        Row(what, Unit.MILLISECONDS, samples, times_peer=4),
        Row(
            f"second {what}, one of them new, over the first",
            Unit.TIMES,
            {"runstore": Sample(tuple(again[-len(samples["runstore"].values) :]))},
            at_most=1 / 3,
        ),
    ]


def in_bucket(bench: Bench) -> list[Row]:
    """`refresh` of 200 runs."""
    return _in_bucket(bench, bench.scale.count_read(200, 2), bench.scale.count_read(5))[:1]


def in_bucket_with_iterations(bench: Bench) -> list[Row]:
    """`refresh` of 500 runs with 50 iterations each, and its requests."""
    return _in_bucket(bench, bench.scale.count(500, 2), bench.scale.count(ITERATIONS, 2))


def _in_bucket(bench: Bench, count: int, iterations: int) -> list[Row]:
    """A refresh, and its requests; half of the runs are completed, of the others an iteration decides.

    The registries' clocks go ahead by a day, as objects cannot be made older than they are.
    """
    runs = _RunsInBucket(bench.in_bucket(), iterations)
    runs.add(count)
    contenders = {"runstore": runs.refresh}
    measured = {"runstore": runs}
    what = f"refresh of {count} runs with {iterations} iterations"
    if (peer := bench.peer) is not None:
        few = min(bench.scale.count(PEER_RUNS, 3), count)
        of_peer = _RunsInBucket(bench.in_bucket(), iterations)
        of_peer.add(few)
        measured["peer"] = of_peer
        contenders["peer"] = lambda: of_peer.refresh_by_peer(peer, count)
        what += f" (peer: {few} timed, scaled)"
    with runs.bucket.proxy.delay():
        samples = alternate(max(1, min(bench.scale.rounds - 2, 3)), contenders)
    what = f"S3, {ONE_WAY * 1e3:.0f} ms each way: {what}"
    asked = {name: Sample((each.asked_a_run,)) for name, each in measured.items()}
    return [
        Row(what, Unit.SECONDS, samples, times_peer=30),
        Row("S3: requests a run of a refresh", Unit.AVERAGE, asked),
        *runs.rows(),
    ]


@dataclass(slots=True)
class _Most:
    """The most requests that a run was seen to cost, by what kind of run it is."""

    completed: int = 0
    idle: int = 0
    known: int = 0
    new: int = 0
    root: int = 0


class _RunsInBucket:
    """Runs below one prefix of a bucket."""

    def __init__(self, bucket: Bucket, iterations: int) -> None:
        self.bucket = bucket
        self._prefix = bucket.new_prefix()
        self._iterations = iterations
        self._numbers: dict[str, int] = {}
        self._most = _Most()
        self.asked_a_run = 0.0

    def add(self, count: int) -> list[str]:
        """Store so many runs more, and give their names."""
        first = len(self._numbers)
        added = {f"run-{number:04}": number for number in range(first, first + count)}
        self._numbers |= added
        files = {
            f"{self._prefix}/{name}/{path}": data
            for name, number in added.items()
            for path, data in _run(number, self._iterations).items()
        }
        self.bucket.put(files)
        return list(added)

    def refresh(self) -> float:
        """Refresh a new registry, then again with one new run; the seconds of the first."""
        registry = runstore.RunRegistry([self.bucket.storage(runstore, self._prefix)])
        known = set(self._numbers)
        with _a_day_later("runstore.stores._survey"):
            self.bucket.proxy.clear()
            start = time.perf_counter()
            found = registry.refresh()
            seconds = time.perf_counter() - start
            first = self._asked()
            (new,) = self.add(1)
            self.bucket.proxy.clear()
            again = registry.refresh()
            second = self._asked()
        assert {info.run_id for info in found} == known
        assert len(again) == len(known) + 1
        self.asked_a_run = sum(first[name] for name in known) / len(known)
        self._most = _Most(
            completed=max(first[name] for name in known if _is_final(self._numbers[name])),
            idle=max(first[name] for name in known if not _is_final(self._numbers[name])),
            known=max(second[name] for name in known),
            new=second[new],
            root=second[""],
        )
        return seconds

    def _asked(self) -> Counter[str]:
        """Requests by run; the root's own by an empty name."""
        places = self.bucket.proxy.traffic().places
        return Counter(place.removeprefix(f"{self._prefix}/").partition("/")[0] for place in places)

    def refresh_by_peer(self, peer: Any, count: int) -> float:
        """Refresh the peer's registry; seconds for so many runs, by those that it takes for the few here."""
        with _a_day_later(f"{PEER}.registry"):
            nothing = self._seconds_of_peer(peer, self.bucket.new_prefix(), 0)
            self.bucket.proxy.clear()
            few = self._seconds_of_peer(peer, self._prefix, len(self._numbers))
            asked = self._asked()
        self.asked_a_run = sum(asked[name] for name in self._numbers) / len(self._numbers)
        return nothing + (few - nothing) / len(self._numbers) * count

    def _seconds_of_peer(self, peer: Any, prefix: str, count: int) -> float:
        storage = self.bucket.storage(peer, prefix)
        storage._fs.invalidate_cache()  # fsspec keeps filesystems with what they have listed
        registry = peer.RunRegistry([storage])
        start = time.perf_counter()
        found = registry.refresh()
        seconds = time.perf_counter() - start
        assert len(found) == count
        return seconds

    def rows(self) -> list[Row]:
        """What was asked of the server."""
        most = self._most
        asked = {
            "a completed run": (most.completed, 3),
            "a run of which an iteration decides": (most.idle, 4),
            "a known run, second refresh with one new": (most.known, 1),
            "the new run there": (most.new, 4),
            "the root there": (most.root, 1),
        }
        return [
            Row(
                f"S3: most requests for {what}",
                Unit.COUNT,
                {"runstore": Sample((float(requests),))},
                at_most=goal,
            )
            for what, (requests, goal) in asked.items()
        ]


def _a_day_later(module: str) -> AbstractContextManager[object]:
    """Have a module see a clock that goes ahead."""
    clock = SimpleNamespace(time=lambda: time.time() + DAY)
    return patch.object(importlib.import_module(module), "time", clock)


def _is_final(number: int) -> bool:
    return number % 2 == 0


def _run(number: int, iterations: int) -> Mapping[str, bytes]:
    """The files of a run, by their paths; half of all have timing spans."""
    last = {"name": "final", "final": True} if _is_final(number) else {"name": "000050"}
    timing = {_data.TIMING: b'{"step": 0, "spans": []}\n'} if number % 4 < 2 else {}
    return {
        "config.json": json.dumps({"loss_fn": "ppo", "model": "tiny", "learning_rate": 1e-5}).encode(),
        _data.METRICS: _data.lines(20, _data.eight_floats),
        **timing,
        "checkpoints.jsonl": b'{"name": "000040"}\n' + json.dumps(last).encode() + b"\n",
        **{f"iteration_{index:06}/train_rollout_summaries.jsonl": b"{}\n" for index in range(iterations)},
    }


def _write_run(root: Path, files: Mapping[str, bytes]) -> None:
    """Write a run as one that has been left alone for a day."""
    yesterday = time.time() - DAY
    for path, data in files.items():
        _data.write_file(root / path, data)
        os.utime(root / path, (yesterday, yesterday))
