"""How cost grows with the data: 1 x, 10 x and 100 x."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from benchmarks import _data, _limit
from benchmarks._measure import Bench, alternate
from benchmarks._row import Growth, Unit
from runstore import TrainingRunStore

__all__ = ["of_iterations", "of_metrics"]

SIZES = (1, 10, 100)
# Cost that grows with the data would grow 100-fold; below these it is noise. A follower looks every 20 ms, so
# that what it takes depends on when the record comes.
NOISE = 1.5
NOISE_OF_LOOKS = 2.5


def of_metrics(bench: Bench) -> list[Growth]:
    """Reading, appending, polling and following a file of 1,000, 10,000 and 100,000 records."""
    counts = [bench.scale.count(1_000 * size, size) for size in SIZES]
    roots = [bench.new_folder() for _ in counts]
    for root, count in zip(roots, counts, strict=True):
        _data.write_file(root / _data.METRICS, _data.lines(count, _data.eight_floats))
    some, few = bench.scale.count(1_000), bench.scale.count(20, 5)
    calls: list[tuple[str, Unit, Callable[[Path, int], float], float]] = [
        ("cold read_metrics, a record", Unit.MICROSECONDS, _read, NOISE),
        ("read_new_metrics that finds nothing", Unit.MICROSECONDS, lambda root, _: _poll(root, some), NOISE),
        ("write_metrics, one record", Unit.MICROSECONDS, lambda root, _: _append(root, some), NOISE),
        (
            "follow_metrics, from an append to its batch",
            Unit.MILLISECONDS,
            lambda root, _: _follow(root, few),
            NOISE_OF_LOOKS,
        ),
    ]
    found = []
    for what, unit, measure, noise in calls:
        contenders = {
            str(count): lambda root=root, count=count, measure=measure: measure(root, count)
            for root, count in zip(roots, counts, strict=True)
        }
        samples = alternate(bench.scale.rounds, contenders)
        found.append(Growth(what, unit, tuple(samples.values()), noise))
    for root in roots:
        shutil.rmtree(root)
    return found


def of_iterations(bench: Bench) -> list[Growth]:
    """Listing 10, 100 and 1,000 iterations with 4 files each."""
    counts = [bench.scale.count(10 * size, size) for size in SIZES]
    roots = [bench.new_folder() for _ in counts]
    for root, count in zip(roots, counts, strict=True):
        for number in range(count):
            for label in ("train", "eval_gsm8k"):
                folder = root / f"iteration_{number:06}"
                _data.write_file(folder / f"{label}_rollout_summaries.jsonl", b"")
                _data.write_file(folder / f"{label}_logtree.json", b"{}")
    contenders = {
        str(count): lambda root=root, count=count: _list(root, count)
        for root, count in zip(roots, counts, strict=True)
    }
    samples = alternate(bench.scale.rounds, contenders)
    for root in roots:
        shutil.rmtree(root)
    return [Growth("list_iterations, an iteration", Unit.MICROSECONDS, tuple(samples.values()), NOISE)]


def _read(root: Path, count: int) -> float:
    store = TrainingRunStore(root)
    start = time.perf_counter()
    store.read_metrics()
    return (time.perf_counter() - start) / count


def _poll(root: Path, times: int) -> float:
    store = TrainingRunStore(root)
    store.read_metrics()
    start = time.perf_counter()
    for _ in range(times):
        store.read_new_metrics()
    return (time.perf_counter() - start) / times


def _append(root: Path, times: int) -> float:
    store = TrainingRunStore(root)
    metrics = _data.eight_floats(0)
    with _same_size(root):
        start = time.perf_counter()
        for _ in range(times):
            store.write_metrics(metrics)
        return (time.perf_counter() - start) / times


def _follow(root: Path, times: int) -> float:
    record = _data.eight_floats(0)
    store = TrainingRunStore(root)
    cursor = store.snapshot_metrics().cursor
    seconds: list[float] = []
    with _same_size(root), store.follow_metrics(cursor=cursor) as follower:
        for _ in range(1 + times):
            _limit.append_line(root / _data.METRICS, record)
            start = time.perf_counter()
            batch = next(follower)
            seconds.append(time.perf_counter() - start)
            assert len(batch.records) == 1
    return median(seconds[1:])  # the first one starts the follower


@contextlib.contextmanager
def _same_size(root: Path) -> Iterator[None]:
    """Cut off afterwards what was appended, so that the sizes stay what they are."""
    path = root / _data.METRICS
    size = path.stat().st_size
    yield
    os.truncate(path, size)


def _list(root: Path, count: int) -> float:
    store = TrainingRunStore(root)
    start = time.perf_counter()
    found = store.list_iterations()
    seconds = time.perf_counter() - start
    assert len(found) == count
    return seconds / count
