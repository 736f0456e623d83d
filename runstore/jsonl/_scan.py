"""One step of reading a JSONL file: fetch what came after a position, parse it piece by piece.

The transfer unit and the parse unit differ: a fetch takes up to the storage's `fetch_size` in one
operation, and a piece of about `PIECE_SIZE` is parsed at a time, so that an event loop gets its turn in
between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import NamedTuple

from runstore.errors import NotFoundError
from runstore.jsonl._decode import Parsed, Record, parse_lines, parse_tail
from runstore.jsonl._position import ANCHOR_SIZE, Bookmark, Position
from runstore.storage._answers import OpenFile
from runstore.storage._base import Storage
from runstore.storage._bridge import breathe, is_inline
from runstore.storage._patience import settle

__all__ = [
    "NOTHING_NEW",
    "Fetched",
    "ReadAhead",
    "end_of_file",
    "fetch",
    "open_bookmark",
    "pieces",
    "read_records",
    "steps",
    "take",
]

PIECE_SIZE = 128 * 1024
# Of lines that have to be looked at one by one, as many as an event loop can wait for.
MOST_WORK = 256 * 1024
# A longer tail is tried as a record only when it ends like one; a shorter one whenever a brace came.
LONG_TAIL = 64 * 1024


class Fetched(NamedTuple):
    """What one storage operation found after a position."""

    data: bytes
    """The bytes read; those from `start` on are new."""
    start: int
    """How many bytes of `data` the position knows already."""
    at_end: bool
    """Whether the file ends after them."""
    replaced: bool = False
    """Whether the file is another one now, or gone: nothing of the position holds any more."""


NOTHING_NEW = Fetched(b"", 0, at_end=True)


async def fetch(
    storage: Storage, path: str, position: Position, size: int | None = None, file: OpenFile | None = None
) -> Fetched:
    """Read what follows a position, together with the bytes that tell whether it still holds.

    Args:
        storage: Where the file is.
        path: The file; missing counts as empty.
        position: The last known place.
        size: Bytes to read at most, the storage's `fetch_size` when not given; more where the tail is
            longer, so that a long line costs few rounds.
        file: The file held open, where it is.
    """
    if size is None:
        size = storage.fetch_size
    if position.tail:
        known, place, size = position.known, position.fetched, max(size, len(position.tail))
    else:
        known, place = position.anchor, position.offset
    start, length = place - len(known), len(known) + size
    try:
        if file is None:
            data = await storage.aread_range(path, start, length)
        else:
            data = await file.aread_range(start, length)
    except NotFoundError:
        return Fetched(b"", 0, at_end=True, replaced=True) if place else NOTHING_NEW
    if data == known and size:
        return NOTHING_NEW
    if not data.startswith(known):
        return Fetched(b"", 0, at_end=False, replaced=True)
    return Fetched(data, len(known), len(data) < length)


class ReadAhead:
    """Fetches of a file that goes on: from the file held open, where the storage can.

    On an event loop the next one is under way while the pieces of the last one are parsed, unless it can
    be had without waiting.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._file: OpenFile | None = None
        self._after = Position()
        self._task: asyncio.Task[Fetched] | None = None

    def begin(self, position: Position, fetched: Fetched) -> None:
        """Begin with what follows the last whole line of what was fetched, if anything does."""
        if fetched.at_end or fetched.replaced:
            return
        self._file = self._file or self._storage.open_file(self._path)
        if is_inline() or (self._file is not None and self._file.in_memory):
            return
        end = fetched.data.rfind(b"\n", fetched.start) + 1
        if end:
            offset = position.fetched + end - fetched.start
            self._after = Position(offset, fetched.data[max(end - ANCHOR_SIZE, 0) : end])
            self._task = asyncio.ensure_future(self._fetch(self._after))

    async def fetch(self, position: Position) -> Fetched:
        """What follows a position: what was begun, if it was for that one."""
        if self._task is not None and not position.tail and position.is_at(self._after):
            task, self._task = self._task, None
            return await task
        await self._give_up()
        await breathe()
        return await self._fetch(position)

    async def _fetch(self, position: Position) -> Fetched:
        fetched = await fetch(self._storage, self._path, position, file=self._file)
        if not fetched.replaced or self._file is None:
            return fetched
        # The file held open may be the one that was replaced.
        await self._file.aclose()
        self._file = None
        return await fetch(self._storage, self._path, position)

    async def _give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await settle(self._task)
            self._task = None

    async def close(self) -> None:
        """End what is under way."""
        try:
            await self._give_up()
        finally:
            if self._file is not None:
                await self._file.aclose()


def pieces(data: bytes, start: int = 0, *, at_end: bool = True) -> Iterable[bytes]:
    """Cut bytes after newlines into pieces to parse; the last one may lack its newline.

    Where the file goes on, a line cut off by the end of the fetch is left for the next one, unless
    nothing else came: looking for records in it costs more than fetching it again.
    """
    if len(data) - start <= PIECE_SIZE and data.endswith(b"\n"):
        return (data[start:],)  # as of most polls
    return _cut(data, start, at_end)


def _cut(data: bytes, start: int, at_end: bool) -> Iterator[bytes]:
    first = start
    while len(data) - start > PIECE_SIZE:
        end = data.rfind(b"\n", start, start + PIECE_SIZE) + 1 or data.find(b"\n", start + PIECE_SIZE) + 1
        if not end:
            break
        yield data[start:end]
        start = end
    whole = data.rfind(b"\n", start) + 1 or start
    if whole > start:
        yield data[start:whole]
    if whole < len(data) and (at_end or whole == first):
        yield data[whole:]


def take(position: Position, piece: bytes, *, is_rest: bool = False) -> tuple[Parsed, Position]:
    """What the piece that follows a position holds, and the position after it.

    Complete objects of a line whose newline has not come yet are records already: whatever follows
    them does not change them.

    Args:
        position: The place that the piece follows.
        piece: Whole lines, or bytes without a newline.
        is_rest: It is what was left of a piece.

    Returns:
        What the piece held; what is left of it in `rest`, which is to be taken next; the position between.
    """
    if piece.endswith(b"\n"):
        data = position.tail + piece if position.tail else piece
        parsed = parse_lines(data, MOST_WORK, one_by_one=is_rest)
        taken = data[: -len(parsed.rest)] if parsed.rest else data
        return parsed, position.advance(taken, parsed.lines, b"")
    tail = position.tail + piece
    if b"}" in piece and (len(tail) <= LONG_TAIL or tail[-LONG_TAIL:].rstrip().endswith(b"}")):
        parsed, consumed = parse_tail(tail)
        if consumed:
            return parsed, position.advance(tail[:consumed], 0, tail[consumed:])
    return Parsed([], []), position._replace(tail=tail)


def steps(
    position: Position, data: bytes, start: int = 0, *, at_end: bool = True
) -> Iterator[tuple[Parsed, Position]]:
    """What `pieces` of the bytes after a position hold, one step after the other, each as from `take`."""
    for piece in pieces(data, start, at_end=at_end):
        rest = piece
        while rest:
            parsed, position = take(position, rest, is_rest=rest is not piece)
            rest = parsed.rest
            yield parsed, position


async def open_bookmark(storage: Storage, path: str, bookmark: Bookmark) -> Position | None:
    """The position that a cursor names, or `None` when the file there is another one now."""
    start = bookmark.offset - bookmark.anchor_size
    try:
        anchor = await storage.aread_range(path, start, bookmark.anchor_size)
    except NotFoundError:
        anchor = b""
    if not bookmark.matches(anchor):
        return None
    return Position(bookmark.offset, anchor, line=1 if bookmark.offset == 0 else None)


async def end_of_file(storage: Storage, path: str) -> Position:
    """The position after the last record that a file holds now; records before it are not parsed."""
    stat = await storage.astat(path)
    size = 0 if stat is None else stat.size
    window = PIECE_SIZE
    while size:
        start = max(size - window, 0)
        try:
            data = await storage.aread_range(path, start, size - start)
        except NotFoundError:
            break
        newline = data.rfind(b"\n")
        if newline >= ANCHOR_SIZE or start == 0:
            before = data[: newline + 1]
            whole = Position(start + len(before), before[-ANCHOR_SIZE:], line=None)
            return take(whole, data[newline + 1 :])[1]
        window *= 8
    return Position()


async def read_records(storage: Storage, path: str) -> AsyncGenerator[list[Record]]:
    """The records of a file from its start, a piece at a time; a missing file has none.

    A file that is replaced meanwhile is read anew from its start.
    """
    position = Position()
    ahead = ReadAhead(storage, path)
    try:
        while True:
            fetched = await ahead.fetch(position)
            if fetched.replaced:
                position = Position()
                continue
            ahead.begin(position, fetched)
            for parsed, after in steps(position, fetched.data, fetched.start, at_end=fetched.at_end):
                position = after
                yield parsed.records
                await breathe()
            if fetched.at_end:
                return
    finally:
        await ahead.close()
