"""What a metrics file holds, from one pass over it: memory for what is shown, whatever the file's size."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runstore import MalformedLine, Storage
from runstore.cli._text import flatten, lookup
from runstore.jsonl._decode import Record, parse_lines, parse_tail
from runstore.stores._series import step_of

__all__ = ["Curve", "Series", "Summary", "read_curves", "summarize"]

# How many malformed lines are named.
NAMED = 5

# Steps of a key that are kept for its plot.
MOST_POINTS = 1_000_000

# Bytes that are read and parsed at a time.
PART_SIZE = 1024 * 1024


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
        kind = type(value)
        if kind is float or kind is int:
            if value < self.lowest and value > -math.inf:
                self.lowest = value
            if value > self.highest and value < math.inf:
                self.highest = value

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
            self.steps.add(step, step)
            for key, value in flatten(record):
                if key == "step":
                    continue
                series = self.series.get(key)
                if series is None:
                    series = self.series[key] = Series()
                series.add(value, step)


def summarize(storage: Storage, path: str) -> Summary:
    """Read a JSONL file once, as far as it goes now; a missing one is an empty one."""
    summary = Summary()
    for part in _parsed_parts(storage, path):
        summary.add(part.records)
        summary.malformed += len(part.malformed)
        summary.latest_malformed.extend(part.malformed)
        summary.unfinished = part.unfinished
    return summary


@dataclass(slots=True)
class Curve:
    """The values of one key: the last of each step, and those of records that have no step."""

    by_step: dict[int, Any] = field(default_factory=dict)
    by_record: dict[int, Any] = field(default_factory=dict)

    def add(self, step: int | None, record: int, value: Any) -> None:
        """Keep a value, and of too many the newest."""
        values, place = (self.by_record, record) if step is None else (self.by_step, step)
        values[place] = value
        if len(values) > MOST_POINTS:
            del values[next(iter(values))]


def read_curves(storage: Storage, path: str, keys: Sequence[str]) -> dict[str, Curve]:
    """The values of some keys in a JSONL file, from its start to as far as it goes now."""
    curves = {key: Curve() for key in keys}
    parts = _parsed_parts(storage, path)
    for number, record in enumerate(record for part in parts for record in part.records):
        step = step_of(record)
        for key, curve in curves.items():
            value = lookup(record, key)
            if value is not None:
                curve.add(step, number, value)
    return curves


class Part(NamedTuple):
    """What a part of a file held."""

    records: list[Record]
    malformed: list[MalformedLine]
    unfinished: int
    """Bytes of a line after it whose end has not come yet."""


def _parsed_parts(storage: Storage, path: str) -> Iterator[Part]:
    line, tail = 1, b""
    for offset, read in _parts(storage, path):
        data = tail + read
        whole = data.rfind(b"\n") + 1
        tail = data[whole:]
        if whole:
            parsed = parse_lines(data[:whole])
            begin = offset + len(read) - len(data)
            malformed = [
                MalformedLine(line + found.line, begin + found.offset, found.reason)
                for found in parsed.problems
            ]
            yield Part(parsed.records, malformed, 0)
            line += data.count(b"\n")
    parsed, consumed = parse_tail(tail)
    yield Part(parsed.records, [], len(tail) - consumed)


def _parts(storage: Storage, path: str) -> Iterator[tuple[int, bytes]]:
    stat = storage.stat(path)
    offset, size = 0, 0 if stat is None else stat.size
    while offset < size:
        part = storage.read_range(path, offset, min(PART_SIZE, size - offset))
        if not part:
            return  # the file has become shorter
        yield offset, part
        offset += len(part)
