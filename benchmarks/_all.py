"""Every benchmark, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks import (
    bucket_reading,
    bucket_writing,
    following,
    growth,
    importing,
    large,
    polling,
    reading,
    registry,
    writing,
)
from benchmarks._measure import Bench
from benchmarks._row import Growth, Row

__all__ = ["BENCHMARKS", "IN_BUCKET", "Benchmark"]

Benchmark = Callable[[Bench], Sequence[Row | Growth]]

_LISTED: tuple[Benchmark, ...] = (
    reading.nine_keys,
    reading.sixty_keys,
    reading.timing_spans,
    reading.nine_keys_with_nan,
    polling.nothing_new,
    polling.nothing_new_awaited,
    polling.one_new,
    polling.one_new_awaited,
    writing.one_at_a_time,
    writing.one_at_a_time_awaited,
    writing.many_at_once,
    writing.rollouts,
    following.many_followers,
    importing.importing,
    large.memory,
    large.single_rollout,
    registry.on_disk,
    growth.of_metrics,
    growth.of_iterations,
)

_LISTED_IN_BUCKET: tuple[Benchmark, ...] = (
    bucket_reading.one_poll,
    bucket_reading.many_polls,
    bucket_reading.cold_read,
    registry.in_bucket,
    registry.in_bucket_with_iterations,
    bucket_writing.flushes,
    bucket_reading.sync_against_awaited,
    bucket_writing.append,
    bucket_writing.append_awaited,
    bucket_writing.append_many_at_once,
)


def _by_name(benchmarks: Sequence[Benchmark]) -> Mapping[str, Benchmark]:
    return {f"{each.__module__.rpartition('.')[2]}.{each.__name__}": each for each in benchmarks}


BENCHMARKS = _by_name(_LISTED)
"""By name, such as `reading.nine_keys`."""

IN_BUCKET = _by_name(_LISTED_IN_BUCKET)
"""Those that need a bucket."""
