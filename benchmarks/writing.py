"""Writing: one record at a time, many at once, and whole files."""

from __future__ import annotations

import asyncio
import shutil
import time

from benchmarks import _data, _limit, _plain
from benchmarks._measure import Bench, Open
from benchmarks._row import Row, Unit

__all__ = ["many_at_once", "one_at_a_time", "one_at_a_time_awaited", "rollouts"]


def one_at_a_time(bench: Bench) -> list[Row]:
    """`write_metrics` again and again."""
    count = bench.scale.count(2_000)
    metrics = _eight_floats()

    def write(opener: Open) -> float:
        store = opener(bench.new_folder())
        store.write_metrics(metrics, 0)
        start = time.perf_counter()
        for step in range(count):
            store.write_metrics(metrics, step)
        return (time.perf_counter() - start) / count

    def limit() -> float:
        path = bench.new_folder() / _data.METRICS
        start = time.perf_counter()
        for step in range(count):
            _limit.append_line(path, {"step": step, **metrics})
        return (time.perf_counter() - start) / count

    def plain() -> float:
        path = bench.new_folder() / _data.METRICS
        start = time.perf_counter()
        for step in range(count):
            _plain.append_line(path, {"step": step, **metrics})
        return (time.perf_counter() - start) / count

    samples = bench.compare(write, limit, plain)
    return [Row("write_metrics of 8 floats", Unit.MICROSECONDS, samples, times_peer=6)]


def one_at_a_time_awaited(bench: Bench) -> list[Row]:
    """`awrite_metrics` again and again."""
    count = bench.scale.count_read(1_000)
    metrics = _eight_floats()

    async def write(opener: Open) -> float:
        store = opener(bench.new_folder())
        await store.awrite_metrics(metrics, 0)
        start = time.perf_counter()
        for step in range(count):
            await store.awrite_metrics(metrics, step)
        return (time.perf_counter() - start) / count

    samples = bench.compare(lambda opener: asyncio.run(write(opener)))
    return [Row("awrite_metrics of 8 floats", Unit.MICROSECONDS, samples, times_peer=1.6)]


def many_at_once(bench: Bench) -> list[Row]:
    """1,000 `awrite_metrics` under way together."""
    count = bench.scale.count_read(1_000)
    metrics = _eight_floats()

    async def write(opener: Open) -> float:
        store = opener(bench.new_folder())
        await store.awrite_metrics(metrics, 0)
        start = time.perf_counter()
        await asyncio.gather(*[store.awrite_metrics(metrics, step) for step in range(count)])
        seconds = time.perf_counter() - start
        assert len(store.read_metrics()) == count + 1
        return seconds

    samples = bench.compare(lambda opener: asyncio.run(write(opener)))
    return [Row(f"{count:,} awrite_metrics at once", Unit.MILLISECONDS, samples, times_peer=10)]


def rollouts(bench: Bench) -> list[Row]:
    """The rollouts of one iteration, written and read cold."""
    records = [_data.rollout(number) for number in range(bench.scale.count_read(512))]
    root = bench.new_folder()
    data = _data.lines(len(records), records.__getitem__)

    def write(opener: Open) -> float:
        store = opener(root)
        start = time.perf_counter()
        store.write_rollouts(0, records)
        return time.perf_counter() - start

    def write_limit() -> float:
        start = time.perf_counter()
        _limit.replace_file(root / _data.ROLLOUTS, records)
        return time.perf_counter() - start

    def read(opener: Open) -> float:
        store = opener(root)
        start = time.perf_counter()
        found = store.read_rollouts(0)
        seconds = time.perf_counter() - start
        assert found == records
        return seconds

    what = f"{len(records):,} trajectories of 20 KB"
    _data.write_file(root / _data.ROLLOUTS, data)
    written = bench.compare(write, write_limit)
    _data.write_file(root / _data.ROLLOUTS, data)
    got = bench.compare(read, lambda: _limit.parse_blocks(data))
    shutil.rmtree(root)
    return [
        Row(f"write_rollouts, {what}", Unit.MILLISECONDS, written, times_peer=1.8),
        Row(f"cold read_rollouts, {what}", Unit.MILLISECONDS, got, times_peer=2),
    ]


def _eight_floats() -> dict[str, float]:
    record = _data.eight_floats(0)
    del record["step"]
    return record
