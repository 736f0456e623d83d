"""Every benchmark, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks import following, growth, importing, large, polling, reading, writing
from benchmarks._measure import Bench
from benchmarks._row import Growth, Row

__all__ = ["BENCHMARKS"]

_LISTED: tuple[Callable[[Bench], Sequence[Row | Growth]], ...] = (
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
    growth.of_metrics,
    growth.of_iterations,
)

BENCHMARKS: Mapping[str, Callable[[Bench], Sequence[Row | Growth]]] = {
    f"{benchmark.__module__.rpartition('.')[2]}.{benchmark.__name__}": benchmark for benchmark in _LISTED
}
"""By name, such as `reading.nine_keys`."""
