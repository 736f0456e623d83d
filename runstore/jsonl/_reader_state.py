"""What a reader holds of its file: how far it is, the newest records, and what it skipped."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from runstore.jsonl._decode import Parsed, Record
from runstore.jsonl._position import START, Position

__all__ = ["MalformedLine", "MalformedLines", "ReaderState"]

# How many malformed lines are remembered with their places.
REMEMBERED = 100
# Blocks that together stay below both are joined, so that polls of one record each stay cheap to keep.
SMALL_BLOCK = 256
SMALL_BLOCK_SIZE = 256 * 1024


@dataclass(frozen=True, slots=True)
class MalformedLine:
    """Bytes of a file that are no record.

    Attributes:
        line: Number of the line, from 1.
        offset: Where the bytes begin, from the start of the file.
        reason: Why they are no record.
    """

    line: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class MalformedLines:
    """What a reader skipped.

    Attributes:
        count: Lines skipped, as a whole or from some place on.
        latest: The latest of them, up to 100, in file order.
        replaced: Records kept whose text was not UTF-8 and was decoded with replacement characters.
    """

    count: int = 0
    latest: tuple[MalformedLine, ...] = ()
    replaced: int = 0


class _Block(NamedTuple):
    """Records that are kept together, and how many bytes of the file they came from."""

    newest_first: list[Record]
    """A list is freed from its end: the oldest record first, as they were made, which costs half as much."""
    size: int


class ReaderState(NamedTuple):
    """All that a reader knows of its file; replaced as a whole, so that it is never half-way."""

    position: Position = START
    total_read: int = 0
    malformed: MalformedLines = MalformedLines()
    blocks: tuple[_Block, ...] = ()
    buffered: int = 0
    buffered_size: int = 0

    def restart(self) -> ReaderState:
        """The state for another file in the old one's place, with a position that no state had before."""
        return ReaderState(Position(), self.total_read)

    def after(self, parsed: Parsed, position: Position, size: int) -> ReaderState:
        """The state after one more piece of the file, which had so many bytes."""
        malformed = self.malformed
        if parsed.problems or parsed.replaced:
            malformed = _add_problems(malformed, self.position, parsed)
        count = len(parsed.records)
        if not count:
            return self._replace(position=position, malformed=malformed)
        return ReaderState(
            position,
            self.total_read + count,
            malformed,
            _add_block(self.blocks, parsed.records[::-1], size),
            self.buffered + count,
            self.buffered_size + size,
        )

    def within(self, max_records: int, max_size: int | None) -> ReaderState:
        """The state without the oldest blocks that the bounds leave no room for."""
        blocks, buffered, size = self.blocks, self.buffered, self.buffered_size
        first = 0
        while first < len(blocks) - 1 and (
            buffered - len(blocks[first].newest_first) >= max_records
            or (max_size is not None and size > max_size)
        ):
            buffered -= len(blocks[first].newest_first)
            size -= blocks[first].size
            first += 1
        if not first:
            return self
        return self._replace(blocks=blocks[first:], buffered=buffered, buffered_size=size)

    def keys_since(self, total_read: int) -> set[str]:
        """Every key of the records read since so many had been, as far as they are kept."""
        keys: set[str] = set()
        wanted = self.total_read - total_read
        for block in reversed(self.blocks):
            if wanted <= 0:
                break
            keys.update(*block.newest_first[:wanted])
            wanted -= len(block.newest_first)
        return keys

    def records(self, max_records: int) -> list[Record]:
        """The newest records, in file order."""
        kept = list(itertools.chain.from_iterable(reversed(block.newest_first) for block in self.blocks))
        return kept[-max_records:] if len(kept) > max_records else kept


def _add_block(blocks: tuple[_Block, ...], newest_first: list[Record], size: int) -> tuple[_Block, ...]:
    if blocks:
        last, last_size = blocks[-1]
        if len(last) + len(newest_first) <= SMALL_BLOCK and last_size + size <= SMALL_BLOCK_SIZE:
            return (*blocks[:-1], _Block(newest_first + last, last_size + size))
    return (*blocks, _Block(newest_first, size))


def _add_problems(malformed: MalformedLines, before: Position, parsed: Parsed) -> MalformedLines:
    found = [
        MalformedLine((before.line or 1) + problem.line, before.offset + problem.offset, problem.reason)
        for problem in parsed.problems
    ]
    return MalformedLines(
        malformed.count + len(found),
        (*malformed.latest, *found)[-REMEMBERED:],
        malformed.replaced + parsed.replaced,
    )
