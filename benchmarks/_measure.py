"""Fair measuring: contenders take turns in one run, each from the same state."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import runstore
from benchmarks._bucket import Bucket
from benchmarks._row import Sample

__all__ = ["FULL", "QUICK", "SMALL", "Bench", "Open", "Scale", "alternate", "load_peer", "longest_hold"]

# Opens the run in a folder; the stores of both packages have the same methods.
Open = Callable[[Path], Any]

PEER = "tinker_cookbook.stores"
TICK = 0.001


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        share: Part of the full amount of data.
        rounds: How often each contender is measured.
        share_read: The same where the goals hold at full size only, as in cold reads: the peer slows
            down as what it keeps grows.
    """

    share: float
    rounds: int
    share_read: float

    def count(self, full: int, least: int = 1) -> int:
        """This scale's part of a full count."""
        return max(int(full * self.share), least)

    def count_read(self, full: int, least: int = 1) -> int:
        """This scale's part of a full count, where the goals hold at full size only."""
        return max(int(full * self.share_read), least)


FULL = Scale(1.0, 7, 1.0)
QUICK = Scale(0.2, 2, 1.0)
SMALL = Scale(0.002, 1, 0.002)


def load_peer() -> Any | None:
    """The peer's module, `None` where it is not installed."""
    try:
        return importlib.import_module(PEER)
    except ImportError:
        return None


def alternate(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, Sample]:
    """Measure contenders in turn, with another one first in each round.

    A first round, when there are several, only warms up (page cache, imports, thread pools).
    """
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for index in range(-1 if rounds > 1 else 0, rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            value = contenders[name]()
            if index >= 0:
                values[name].append(value)
    return {name: Sample(tuple(found)) for name, found in values.items()}


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark runs with.

    Attributes:
        folder: Where its files go.
        scale: How much it measures.
        peer: The peer's module, if it is installed.
        bucket: Where what is measured in S3 goes, if there is a server.
    """

    folder: Path
    scale: Scale
    peer: Any | None
    bucket: Bucket | None = None

    def new_folder(self) -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def in_bucket(self) -> Bucket:
        """The bucket, for benchmarks that run only where there is one."""
        assert self.bucket is not None
        return self.bucket

    def packages(self) -> dict[str, Any]:
        """By contender, its module; both have the same classes."""
        return {"runstore": runstore} | ({"peer": self.peer} if self.peer is not None else {})

    def compare_packages(self, measure: Callable[[Any], float], most_rounds: int = 7) -> dict[str, Sample]:
        """Measure both packages, by their modules, in turn."""
        contenders = {name: partial(measure, package) for name, package in self.packages().items()}
        return alternate(min(self.scale.rounds, most_rounds), contenders)

    def openers(self) -> dict[str, Open]:
        """By contender, how it opens a run."""
        openers: dict[str, Open] = {"runstore": runstore.TrainingRunStore}
        if (peer := self.peer) is not None:
            openers["peer"] = lambda root: peer.TrainingRunStore(peer.LocalStorage(root))
        return openers

    def compare(
        self,
        measure: Callable[[Open], float],
        limit: Callable[[], float] | None = None,
        plain: Callable[[], float] | None = None,
    ) -> dict[str, Sample]:
        """Measure both packages, and the plain loop and the limit if there are such, in turn."""
        contenders: dict[str, Callable[[], float]] = {
            name: lambda opener=opener: measure(opener)  # type: ignore[misc]
            for name, opener in self.openers().items()
        }
        if plain is not None:
            contenders["plain json"] = plain
        if limit is not None:
            contenders["limit"] = limit
        return alternate(self.scale.rounds, contenders)

    def child(self, script: str, *args: object) -> subprocess.Popen[str]:
        """Start a script of this folder with the same runstore, and a pipe from its output."""
        path = os.fspath(Path(__file__).with_name(script))
        packages = os.fspath(Path(runstore.__file__).parents[1])
        return subprocess.Popen(
            [sys.executable, path, *map(str, args)],
            stdout=subprocess.PIPE,
            text=True,
            # Bytecode is kept, as it is of an installed package: compiling is not what importing costs.
            env={**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": ""},
        )

    def child_value(self, script: str, *args: object) -> float:
        """Run a script of this folder; the number that it prints."""
        with self.child(script, *args) as process:
            output, _ = process.communicate()
        assert process.returncode == 0, script
        return float(output)


async def longest_hold(work: Awaitable[Any]) -> float:
    """The longest time for which the running loop was held while `work` was done, in seconds."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            longest = max(longest, now - last - TICK)
            last = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(2 * TICK)
    result = await work
    await asyncio.sleep(2 * TICK)  # so that the ticker sees a hold that came last
    ticker.cancel()
    del result  # what freeing it costs is the caller's
    return longest
