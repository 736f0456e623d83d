"""Cold reads: a whole file through a fresh store, from the page cache."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _data, _limit, _plain
from benchmarks._measure import Bench, Open, longest_hold
from benchmarks._row import Row, Unit

__all__ = ["nine_keys", "nine_keys_with_nan", "sixty_keys", "timing_spans"]

# What the stores keep of a file with more records.
KEPT = 50_000


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    name: str
    count: int
    record: Callable[[int], dict[str, Any]]
    times_peer: float
    of_limit: float | None
    longest_hold: float

    @property
    def method(self) -> str:
        return "read_timing" if self.name == _data.TIMING else "read_metrics"


def nine_keys(bench: Bench) -> list[Row]:
    """Records of 9 keys, 91 MB."""
    count = bench.scale.count_read(300_000)
    return _read(bench, _Case("9 keys", _data.METRICS, count, _data.eight_floats, 7, 0.8, 0.010))


def sixty_keys(bench: Bench) -> list[Row]:
    """Records of 60 keys, 40 MB."""
    count = bench.scale.count_read(20_000)
    return _read(bench, _Case("60 keys", _data.METRICS, count, _data.sixty_keys, 5.5, 0.85, 0.010))


def timing_spans(bench: Bench) -> list[Row]:
    """Timing records of 95 KB, 57 MB."""
    count = bench.scale.count_read(600)
    return _read(bench, _Case("460 spans", _data.TIMING, count, _data.spans, 3, 0.9, 0.020))


def nine_keys_with_nan(bench: Bench) -> list[Row]:
    """Records of 9 keys with a NaN in each, 30 MB."""
    count = bench.scale.count_read(100_000)
    record = _data.eight_floats_with_nan
    return _read(bench, _Case("9 keys, one of them NaN", _data.METRICS, count, record, 1.5, None, 0.010))


def _read(bench: Bench, case: _Case) -> list[Row]:
    root = bench.new_folder()
    repeats = math.gcd(case.count, 10)  # making records takes longer than reading them
    data = repeats * _data.lines(case.count // repeats, case.record)
    _data.write_file(root / case.name, data)
    limit = None if case.of_limit is None else partial(_limit.parse_blocks, data)
    what = f"{case.method}, {case.count:,} records of {case.what}"
    goals = {"times_peer": case.times_peer, "of_limit": case.of_limit}

    def read(measure: Callable[[Path, _Case, Open], float]) -> Callable[[Open], float]:
        return lambda opener: measure(root, case, opener)

    sync = bench.compare(read(_seconds), limit, partial(_plain.read_lines, root / case.name))
    awaited = bench.compare(read(_seconds_awaited), limit)
    five = dataclasses.replace(
        bench, scale=dataclasses.replace(bench.scale, rounds=min(bench.scale.rounds, 5))
    )
    held = five.compare(read(_hold))
    shutil.rmtree(root)
    return [
        Row(f"cold {what}", Unit.MILLISECONDS, sync, **goals),
        Row(f"cold a{what}", Unit.MILLISECONDS, awaited, **goals),
        Row(f"loop held by a{what}, longest", Unit.MILLISECONDS, held, at_most=case.longest_hold),
    ]


def _seconds(root: Path, case: _Case, opener: Open) -> float:
    read = getattr(opener(root), case.method)
    start = time.perf_counter()
    records = read()
    seconds = time.perf_counter() - start
    assert len(records) == min(case.count, KEPT)
    return seconds


def _seconds_awaited(root: Path, case: _Case, opener: Open) -> float:
    async def read() -> float:
        read = getattr(opener(root), f"a{case.method}")
        start = time.perf_counter()
        records = await read()
        seconds = time.perf_counter() - start
        assert len(records) == min(case.count, KEPT)
        return seconds

    return asyncio.run(read())


def _hold(root: Path, case: _Case, opener: Open) -> float:
    async def read() -> float:
        store = opener(root)  # kept, as the result is: what freeing them costs does not count
        return await longest_hold(getattr(store, f"a{case.method}")())

    return asyncio.run(read())
