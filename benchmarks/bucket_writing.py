"""Writing in a bucket: what flushes send and fetch, and what an append takes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks import _data
from benchmarks._bucket import Bucket
from benchmarks._measure import FULL, Bench
from benchmarks._row import Row, Sample, Unit

__all__ = ["append", "append_awaited", "append_many_at_once", "flushes"]

# Of so many flushes one is measured, in full and in quick runs.
EVERY = {"runstore": (1, 20), "peer": (10, 80)}


def flushes(bench: Bench) -> list[Row]:
    """Bytes both ways while a run grows to 20 MB by 400 timing records of 50 KB, each flushed.

    What the peer sends and fetches, 8 GB in all, grows evenly with the size: a part of its flushes is
    measured, and counts for those around it. Quick runs do the same with both packages.
    """
    steps = bench.scale.count_read(400)
    spans = _data.spans(0)["spans"][:240]
    samples, measured = {}, []
    for name, package in bench.packages().items():
        every = min(EVERY[name][0 if bench.scale == FULL else 1], steps)
        found = every * _bytes(bench.in_bucket(), package, range(0, steps, every), spans)
        samples[name] = Sample((float(found),))
        measured += [f"{name}: 1 of {every} measured"] if every > 1 else []
    what = f"S3: bytes both ways, {steps} flushes of 50 KB" + (
        f" ({', '.join(measured)})" if measured else ""
    )
    return [Row(what, Unit.MEGABYTES, samples, times_peer=20)]


def _bytes(bucket: Bucket, package: Any, steps: range, spans: list[dict[str, Any]]) -> int:
    """Bytes that the flushes of these steps send and fetch."""
    prefix = bucket.new_prefix()
    storage = bucket.storage(package, prefix)
    store = package.TrainingRunStore(storage)
    line = f"{json.dumps({'step': 0, 'spans': spans})}\n".encode()

    def flush(step: int) -> None:
        store.write_timing_spans(step, spans)
        storage.flush()

    if steps.step > 1:
        flush(0)  # whatever only the first flush to a server asks
    found = 0
    for step in steps:
        if steps.step > 1:
            before = step + steps.step // 2 - 1
            bucket.put({f"{prefix}/{step}/{_data.TIMING}": line * before})
            store = package.TrainingRunStore(storage, str(step))
            flush(step)  # the packages may know a file that they have flushed before
        bucket.proxy.clear()
        flush(step)
        traffic = bucket.proxy.traffic()
        found += traffic.sent + traffic.received
    return found


def append(bench: Bench) -> list[Row]:
    """`write_metrics` again and again; both packages keep it on the local disk until a flush."""
    count = bench.scale.count_read(2_000)
    metrics = _data.eight_floats(0)

    def write(store: Any) -> float:
        start = time.perf_counter()
        for _ in range(count):
            store.write_metrics(metrics)
        return (time.perf_counter() - start) / count

    return _compare(bench, "write_metrics of 8 floats", Unit.MICROSECONDS, write)


def append_awaited(bench: Bench) -> list[Row]:
    """`awrite_metrics` again and again."""
    count = bench.scale.count_read(2_000)
    metrics = _data.eight_floats(0)

    async def write(store: Any) -> float:
        start = time.perf_counter()
        for _ in range(count):
            await store.awrite_metrics(metrics)
        return (time.perf_counter() - start) / count

    what = "awrite_metrics of 8 floats"
    return _compare(bench, what, Unit.MICROSECONDS, lambda store: asyncio.run(write(store)))


def append_many_at_once(bench: Bench) -> list[Row]:
    """1,000 `awrite_metrics` under way together."""
    count = bench.scale.count_read(1_000)
    metrics = _data.eight_floats(0)

    async def write(store: Any) -> float:
        start = time.perf_counter()
        await asyncio.gather(*[store.awrite_metrics(metrics) for _ in range(count)])
        return time.perf_counter() - start

    what = f"{count:,} awrite_metrics at once"
    return _compare(bench, what, Unit.MILLISECONDS, lambda store: asyncio.run(write(store)))


def _compare(bench: Bench, what: str, unit: Unit, write: Callable[[Any], float]) -> list[Row]:
    """Measure appends to a file that was flushed before, straight at the server, without the next flush."""
    bucket = bench.in_bucket()

    def measured(package: Any) -> float:
        storage = bucket.storage(package, bucket.new_prefix(), direct=True)
        store = package.TrainingRunStore(storage)
        # The first append after a flush is left out: the peer fetches the file with it.
        for end in (storage.flush, lambda: None):
            store.write_metrics({"loss": 0.5})
            end()
        found = write(store)
        storage.flush()
        return found

    samples = bench.compare_packages(measured)
    return [Row(f"S3: {what}, up to the next flush", unit, samples)]
