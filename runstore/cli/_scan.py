"""What a metrics file holds, from one pass over it: memory for the keys, whatever the file's size."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runstore import MalformedLine, Storage
from runstore.cli._text import flatten, number
from runstore.jsonl._decode import Problem, Record
from runstore.jsonl._position import Position
from runstore.jsonl._scan import fetch, pieces, take

__all__ = ["Series", "Summary", "summarize"]

# How many malformed lines are named.
NAMED = 5


@dataclass(slots=True)
class Series:
    """What one key held: finite numbers count for the lowest and highest, anything for the last."""

    count: int = 0
    last: Any = None
    last_step: Any = None
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, value: Any, step: Any) -> None:
        self.count += 1
        self.last, self.last_step = value, step
        figure = number(value)
        if figure is not None and math.isfinite(figure):
            self.lowest, self.highest = min(self.lowest, figure), max(self.highest, figure)

    @property
    def has_numbers(self) -> bool:
        return self.lowest <= self.highest


@dataclass(slots=True)
class Summary:
    """What a whole file held."""

    records: int = 0
    steps: Series = field(default_factory=Series)
    series: dict[str, Series] = field(default_factory=dict)
    malformed: int = 0
    latest_malformed: deque[MalformedLine] = field(default_factory=lambda: deque(maxlen=NAMED))
    unfinished: int = 0
    """Bytes of a last line that is not complete, for now or for ever."""

    def add(self, records: Sequence[Record]) -> None:
        self.records += len(records)
        for record in records:
            step = record.get("step")
            if step is not None:
                self.steps.add(step, step)
            for key, value in flatten(record):
                if key != "step":
                    self.series.setdefault(key, Series()).add(value, step)

    def add_problems(self, problems: Sequence[Problem], before: Position) -> None:
        self.malformed += len(problems)
        self.latest_malformed.extend(
            MalformedLine((before.line or 1) + problem.line, before.offset + problem.offset, problem.reason)
            for problem in problems
        )


def summarize(storage: Storage, path: str) -> Summary:
    """Read a JSONL file once; a missing one is an empty one."""
    return storage.run_sync(_summarize, storage, path)


async def _summarize(storage: Storage, path: str) -> Summary:
    summary, position = Summary(), Position()
    while True:
        fetched = await fetch(storage, path, position)
        if fetched.replaced:
            summary, position = Summary(), Position()
            continue
        for piece in pieces(fetched.data):
            parsed, after = take(position, piece, at_end=fetched.at_end)
            summary.add(parsed.records)
            summary.add_problems(parsed.problems, position)
            position = after
        if fetched.at_end:
            summary.unfinished = len(position.tail)
            return summary
