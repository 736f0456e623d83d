"""Choosing the checkpoint to go on from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from runstore.jsonl._decode import Record
from runstore.stores._records import CheckpointRecord

__all__ = ["best_checkpoint", "is_final", "last_checkpoint"]


def is_final(name: Any, final: Any) -> bool:
    """Whether training ended with a checkpoint: it says so, or is called `final` and does not deny it."""
    return final is True or (final is None and name == "final")


def last_checkpoint(records: Sequence[CheckpointRecord], name: str | None = None) -> CheckpointRecord | None:
    """The last one of a name; without a name the last final one, or the last of all."""
    if name is not None:
        wanted = [record for record in records if record.name == name]
    else:
        wanted = [record for record in records if is_final(record.name, record.final)] or list(records)
    return wanted[-1] if wanted else None


def best_checkpoint(
    records: Sequence[CheckpointRecord], series: Sequence[Record], metric: str, *, lowest: bool
) -> CheckpointRecord | None:
    """The checkpoint with the best last value of a metric at or before its batch; of equals the latest.

    Args:
        records: The checkpoints, in file order; those without a batch do not count.
        series: One row a step, in order of steps.
        metric: Key of the metric; values that are no finite numbers do not count.
        lowest: Whether less is better.
    """
    values = [(row["step"], row[metric]) for row in series if _is_number(row.get(metric))]
    best: tuple[float, int, CheckpointRecord] | None = None
    for place, record in enumerate(records):
        if type(record.batch) is not int:
            continue
        seen = [value for step, value in values if step <= record.batch]
        if seen:
            score = -seen[-1] if lowest else seen[-1]
            if best is None or (score, place) > best[:2]:
                best = (score, place, record)
    return None if best is None else best[2]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
