"""A line for each of many runs: what the registry knows, and the end of its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from runstore import NotFoundError, RunInfo, RunRegistry, Storage, storage_join
from runstore.cli._text import flatten, printable, short
from runstore.jsonl._decode import Record, parse_lines, parse_tail
from runstore.storage._base import run_sync_over
from runstore.storage._bridge import gather
from runstore.stores._series import step_of

__all__ = ["COLUMNS", "DROPPED", "TEXTS", "RunLine", "age", "read_lines"]

COLUMNS = ("id", "status", "steps", "last metrics", "age", "where")
TEXTS = ("status", "last metrics", "where")
DROPPED = ("where", "last metrics", "age", "steps")  # where there is no room, the first of them first

# Bytes at the end of the metrics that are read, and at most if there is no whole record in so few.
TAIL_SIZE = 16 * 1024
LONGEST_TAIL = 4 * 1024 * 1024
SHOWN_METRICS = 3

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of a list."""

    info: RunInfo
    url: str
    step: int | None
    last: Record

    def cells(self) -> tuple[str, ...]:
        """What a table shows of it."""
        info = self.info
        numbers = [(key, value) for key, value in flatten(self.last) if key != "step" and _is_number(value)]
        metrics = "  ".join(f"{printable(key)} {short(value)}" for key, value in numbers[:SHOWN_METRICS])
        return (
            printable(info.run_id),
            "error" if info.error else info.status,
            "" if self.step is None else str(self.step),
            printable(info.error) if info.error else metrics,
            "" if info.age is None else age(info.age),
            printable(self.url),
        )

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        info = self.info
        return {
            "id": info.run_id,
            "status": info.status,
            "status_reason": info.status_reason,
            "step": self.step,
            "last_metrics": self.last,
            "age_seconds": info.age,
            "last_updated": info.last_updated,
            "iterations": info.iteration_count,
            "training_type": info.training_type,
            "url": self.url,
            "error": info.error,
        }


def read_lines(registry: RunRegistry, runs: Sequence[RunInfo]) -> list[RunLine]:
    """Look at the end of each run's metrics, many at a time."""
    if not runs:
        return []
    # A list shows what is there, and does not deliver what a process that died left for it.
    storages = [registry.storage_for(run.run_id).durable_view() for run in runs]
    return run_sync_over(storages, _read_lines, storages, runs)


async def _read_lines(storages: Sequence[Storage], runs: Sequence[RunInfo]) -> list[RunLine]:
    pairs = zip(storages, runs, strict=True)
    return await gather([partial(_read_line, storage, run) for storage, run in pairs], 32)


async def _read_line(storage: Storage, run: RunInfo) -> RunLine:
    records = (
        await _last_records(storage, storage_join(run.prefix, "metrics.jsonl")) if run.has_metrics else []
    )
    steps = [step for record in records if (step := step_of(record)) is not None]
    return RunLine(run, storage.url(run.prefix), steps[-1] if steps else None, records[-1] if records else {})


async def _last_records(storage: Storage, path: str) -> list[Record]:
    """The records in the last bytes of a file; in more bytes when those hold none."""
    stat = await storage.astat(path)
    size, length = 0 if stat is None else stat.size, TAIL_SIZE
    while size:
        start = max(size - length, 0)
        try:
            data = await storage.aread_range(path, start, size - start)
        except NotFoundError:
            break
        first = data.find(b"\n") + 1 if start else 0
        whole = data.rfind(b"\n") + 1
        records = parse_lines(data[first:whole]).records if whole > first else []
        records += parse_tail(data[max(first, whole) :])[0].records
        if records or not start or length >= LONGEST_TAIL:
            return records
        length *= 16
    return []


def age(seconds: float) -> str:
    """A time span in its largest unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
