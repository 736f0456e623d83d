"""Polls of a file that has nothing new, or one record."""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks import _data, _limit
from benchmarks._measure import Bench, Open
from benchmarks._row import Row, Unit

__all__ = ["nothing_new", "nothing_new_awaited", "one_new", "one_new_awaited"]

RECORDS = 1_000


def nothing_new(bench: Bench) -> list[Row]:
    """`read_new_metrics` while nobody writes."""
    count = bench.scale.count(2_000)
    root = bench.new_folder()
    path = root / _data.METRICS
    _data.write_file(path, _data.lines(RECORDS, _data.eight_floats))

    def poll(opener: Open) -> float:
        store = opener(root)
        store.read_metrics()
        start = time.perf_counter()
        found = sum(len(store.read_new_metrics()) for _ in range(count))
        seconds = time.perf_counter() - start
        assert found == 0
        return seconds / count

    def limit() -> float:
        start = time.perf_counter()
        for _ in range(count):
            os.stat(path)  # noqa: PTH116  the bare system call
        return (time.perf_counter() - start) / count

    samples = bench.compare(poll, limit)
    return [Row("read_new_metrics that finds nothing", Unit.MICROSECONDS, samples, times_peer=5)]


def nothing_new_awaited(bench: Bench) -> list[Row]:
    """`aread_new_metrics` while nobody writes."""
    count = bench.scale.count(1_000)
    root = bench.new_folder()
    _data.write_file(root / _data.METRICS, _data.lines(RECORDS, _data.eight_floats))

    async def poll(opener: Open) -> float:
        store = opener(root)
        await store.aread_metrics()
        start = time.perf_counter()
        found = 0
        for _ in range(count):
            found += len(await store.aread_new_metrics())
        seconds = time.perf_counter() - start
        assert found == 0
        return seconds / count

    samples = bench.compare(lambda opener: asyncio.run(poll(opener)))
    return [Row("aread_new_metrics that finds nothing", Unit.MICROSECONDS, samples, times_peer=1.4)]


def one_new(bench: Bench) -> list[Row]:
    """`read_new_metrics` after each record; writing it is not measured."""
    count = bench.scale.count(2_000)
    data = _data.lines(RECORDS, _data.eight_floats)
    record = _data.eight_floats(0)

    def poll(opener: Open) -> float:
        root = bench.new_folder()
        _data.write_file(root / _data.METRICS, data)
        store = opener(root)
        store.read_metrics()
        seconds = 0.0
        for _ in range(count):
            _limit.append_line(root / _data.METRICS, record)
            start = time.perf_counter()
            found = store.read_new_metrics()
            seconds += time.perf_counter() - start
            assert len(found) == 1
        return seconds / count

    def limit() -> float:
        path = bench.new_folder() / _data.METRICS
        _data.write_file(path, data)
        seconds = 0.0
        for _ in range(count):
            size = path.stat().st_size
            _limit.append_line(path, record)
            start = time.perf_counter()
            found = _limit.read_tail(path, size)
            seconds += time.perf_counter() - start
            assert len(found) == 1
        return seconds / count

    samples = bench.compare(poll, limit)
    return [Row("read_new_metrics that finds one record", Unit.MICROSECONDS, samples, times_peer=6)]


def one_new_awaited(bench: Bench) -> list[Row]:
    """`aread_new_metrics` after each record; writing it is not measured."""
    count = bench.scale.count(1_000)
    data = _data.lines(RECORDS, _data.eight_floats)
    record = _data.eight_floats(0)

    async def poll(opener: Open) -> float:
        root = bench.new_folder()
        _data.write_file(root / _data.METRICS, data)
        store = opener(root)
        await store.aread_metrics()
        seconds = 0.0
        for _ in range(count):
            _limit.append_line(root / _data.METRICS, record)
            start = time.perf_counter()
            found = await store.aread_new_metrics()
            seconds += time.perf_counter() - start
            assert len(found) == 1
        return seconds / count

    samples = bench.compare(lambda opener: asyncio.run(poll(opener)))
    return [Row("aread_new_metrics that finds one record", Unit.MICROSECONDS, samples, times_peer=1.6)]
