"""The clean series of a run that was resumed, or that logs train and eval lines of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runstore.jsonl._decode import Record
from runstore.storage._bridge import breathe

__all__ = ["merge_by_step", "step_of"]

# Records that are merged before an event loop gets its turn.
MERGED_AT_A_STRETCH = 500


def step_of(record: Record) -> int | None:
    """The step of a record: an integer, or a float with an integral value; `None` for all else."""
    step: Any = record.get("step")
    if type(step) is int:
        return step
    if type(step) is float and step.is_integer():
        return int(step)
    return None


async def merge_by_step(records: Sequence[Record]) -> list[Record]:
    """One new record for each step, in ascending order.

    Records of one step are merged key by key, and later values win. Records without a step are
    left out. The records themselves are not touched.

    Args:
        records: Records in file order.
    """
    merged: dict[int, Record] = {}
    for start in range(0, len(records), MERGED_AT_A_STRETCH):
        for record in records[start : start + MERGED_AT_A_STRETCH]:
            step = step_of(record)
            if step is not None:
                merged.setdefault(step, {}).update(record, step=step)
        await breathe()
    return [merged[step] for step in sorted(merged)]
