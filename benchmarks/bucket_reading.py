"""Reading in a bucket: polls, many polls at once, a cold read, and what a sync call adds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import runstore
from benchmarks import _data
from benchmarks._bucket import ONE_WAY, Bucket
from benchmarks._measure import Bench, alternate
from benchmarks._row import Row, Sample, Unit

__all__ = ["cold_read", "many_polls", "one_poll", "sync_against_awaited"]

RECORDS = 100
AWAY = f"S3, {ONE_WAY * 1e3:.0f} ms each way"


def one_poll(bench: Bench) -> list[Row]:
    """`read_new_metrics` after each record; storing it is not measured."""
    bucket = bench.in_bucket()
    count = bench.scale.count(10, 2)
    requests: dict[str, list[float]] = {}

    def poll(package: Any) -> float:
        runs = _Runs(bucket, 1)
        (store,) = runs.stores(package)
        bucket.proxy.clear()
        seconds = 0.0
        for _ in range(count):
            runs.add_news()
            start = time.perf_counter()
            found = store.read_new_metrics()
            seconds += time.perf_counter() - start
            assert len(found) == 1
        requests.setdefault("runstore" if package is runstore else "peer", []).append(
            len(bucket.proxy.traffic().places) / count
        )
        return seconds / count

    with bucket.proxy.delay():
        samples = bench.compare_packages(poll, 5)
    each = {name: Sample((max(counts),)) for name, counts in requests.items()}
    what = "read_new_metrics that finds one record"
    return [
        Row(f"{AWAY}: {what}", Unit.MILLISECONDS, samples, times_peer=2.5),
        Row(f"S3: requests of a {what}", Unit.COUNT, each, at_most=1),
    ]


def many_polls(bench: Bench) -> list[Row]:
    """50 runs polled at once, each with one new record; the peer both ways that it can be done.

    Its async methods share the loop's few default threads, so a thread each is tried too; the goal is held
    against the faster way.
    """
    bucket = bench.in_bucket()
    count = bench.scale.count_read(50)
    with ThreadPoolExecutor(count) as threads:
        contenders = {"runstore": _awaited(_Runs(bucket, count), runstore)}
        if bench.peer is not None:
            contenders["peer"] = _awaited(_Runs(bucket, count), bench.peer)
            contenders["peer in threads"] = _in_threads(_Runs(bucket, count), bench.peer, threads)
        samples = alternate(bench.scale.rounds, contenders)
    what = f"{AWAY}: {count} aread_new_metrics at once, each finds one record"
    if bench.peer is None:
        return [Row(what, Unit.MILLISECONDS, samples)]
    threaded = samples.pop("peer in threads")
    in_threads = samples | {"peer": threaded}
    faster = threaded.median < samples["peer"].median
    return [
        Row(what, Unit.MILLISECONDS, samples, times_peer=None if faster else 10),
        Row(
            f"{what} (peer: read_new_metrics in {count} threads)",
            Unit.MILLISECONDS,
            in_threads,
            times_peer=10 if faster else None,
        ),
    ]


def cold_read(bench: Bench) -> list[Row]:
    """`read_metrics` of 100 MB through a fresh store."""
    bucket = bench.in_bucket()
    block = bench.scale.count_read(33_000)
    count = 10 * block
    prefix = bucket.new_prefix()
    data = 10 * _data.lines(block, _data.eight_floats)
    bucket.put({f"{prefix}/{_data.METRICS}": data})

    def read(package: Any) -> float:
        store = package.TrainingRunStore(bucket.storage(package, prefix))
        start = time.perf_counter()
        records = store.read_metrics()
        seconds = time.perf_counter() - start
        assert len(records) == min(count, 50_000)
        return seconds

    with bucket.proxy.delay():
        samples = bench.compare_packages(read, 5)
    bucket.server.delete(f"{prefix}/{_data.METRICS}")
    what = f"{AWAY}: cold read_metrics of {len(data) / 1e6:,.0f} MB"
    return [Row(what, Unit.MILLISECONDS, samples, times_peer=2)]


def sync_against_awaited(bench: Bench) -> list[Row]:
    """What a poll that finds nothing takes longer when it is a sync call, without latency or proxy."""
    bucket = bench.in_bucket()
    count = bench.scale.count(200, 5)
    prefix = bucket.new_prefix()
    bucket.put({f"{prefix}/{_data.METRICS}": _data.lines(RECORDS, _data.eight_floats)})

    async def awaited(store: Any) -> float:
        start = time.perf_counter()
        found = await store.aread_new_metrics()
        assert not found
        return time.perf_counter() - start

    def sync(store: Any) -> float:
        start = time.perf_counter()
        found = store.read_new_metrics()
        assert not found
        return time.perf_counter() - start

    def difference() -> float:
        store = runstore.TrainingRunStore(bucket.storage(runstore, prefix, direct=True))
        store.read_metrics()
        with asyncio.Runner() as runner:
            pairs = [(sync(store), runner.run(awaited(store))) for _ in range(count)]
        return median(one for one, _ in pairs) - median(other for _, other in pairs)

    samples = alternate(bench.scale.rounds, {"runstore": difference})
    what = "S3: read_new_metrics that finds nothing, beyond the same awaited"
    return [Row(what, Unit.MICROSECONDS, samples, at_most=0.0005)]


class _Runs:
    """Runs in a bucket that get records now and then."""

    def __init__(self, bucket: Bucket, count: int) -> None:
        self._bucket = bucket
        self._prefix = bucket.new_prefix()
        self._names = [f"run-{number:02}" for number in range(count)]
        self._data = _data.lines(RECORDS, _data.eight_floats)
        self.add_news()

    def add_news(self) -> None:
        """Let each run have one record more."""
        self._data += _data.lines(1, _data.eight_floats)
        self._bucket.put({f"{self._prefix}/{name}/{_data.METRICS}": self._data for name in self._names})

    def news_from_afar(self) -> contextlib.AbstractContextManager[None]:
        """The same, then latency."""
        self.add_news()
        return self._bucket.proxy.delay()

    def stores(self, package: Any) -> Sequence[Any]:
        """A package's stores of the runs, each at the end of what there is."""
        storage = self._bucket.storage(package, self._prefix)
        stores = [package.TrainingRunStore(storage, name) for name in self._names]
        for store in stores:
            store.read_metrics()
        return stores


def _awaited(runs: _Runs, package: Any) -> Callable[[], float]:
    stores = runs.stores(package)

    async def poll() -> float:
        with await asyncio.to_thread(runs.news_from_afar):
            start = time.perf_counter()
            found = await asyncio.gather(*[store.aread_new_metrics() for store in stores])
            seconds = time.perf_counter() - start
        assert all(len(records) == 1 for records in found)
        return seconds

    return lambda: asyncio.run(poll())


def _in_threads(runs: _Runs, package: Any, threads: ThreadPoolExecutor) -> Callable[[], float]:
    stores = runs.stores(package)

    def poll() -> float:
        with runs.news_from_afar():
            start = time.perf_counter()
            found = list(threads.map(lambda store: store.read_new_metrics(), stores))
            seconds = time.perf_counter() - start
        assert all(len(records) == 1 for records in found)
        return seconds

    return poll
