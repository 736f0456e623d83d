"""A JSONL file read again and again, each time from where the last read ended."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

from runstore.errors import InvalidInputError
from runstore.jsonl._batch import Batch
from runstore.jsonl._decode import Record
from runstore.jsonl._position import Position
from runstore.jsonl._reader_state import MalformedLines, ReaderState
from runstore.jsonl._scan import NOTHING_NEW, Fetched, ReadAhead, fetch, pieces, take
from runstore.storage import Storage, as_storage
from runstore.storage._bridge import breathe, is_inline, on_fork, running_loop
from runstore.storage._sync_only import SyncMethods
from runstore.storage._twins import show_twins

__all__ = ["IncrementalReader"]

logger = logging.getLogger("runstore")

# So long a poll after one that found nothing only asks whether the file is the same: some network
# mounts answer that from memory.
QUIET_SECONDS = 1.0


class _Quiet(NamedTuple):
    """A look that found nothing, and until when it need not be taken again while the file is the same."""

    position: Position | None = None
    signature: Hashable | None = None
    until: float = 0.0


@show_twins
class IncrementalReader:
    """Reads a JSONL file by byte offset: only what came since the last read is fetched and parsed.

    Many threads, tasks and event loops may share one: each record is handed out once, and none is
    lost. A file that was replaced (a shorter one, or other bytes where the last read ended) is read
    anew from its start. Malformed lines are skipped and kept in `malformed`, with one warning in the
    log. Records are shared with the buffer: treat them as read-only.
    """

    def __init__(
        self,
        storage: Storage | SyncMethods | str | os.PathLike[str],
        path: str,
        max_records: int = 50_000,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """Make a reader; nothing is read yet.

        Args:
            storage: Where the file is: a storage, a path or a URI.
            path: The file in it; it may come into being later.
            max_records: How many records the buffer keeps, the oldest dropped first.
            max_bytes: How many bytes of the file the buffer keeps the records of.

        Raises:
            InvalidInputError: `max_records` is below 1.
        """
        if max_records < 1:
            msg = f"max_records must be at least 1, not {max_records}"
            raise InvalidInputError(msg)
        self._storage = as_storage(storage)
        self._path = path
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._state = ReaderState()
        # Keys of the first `_keys_looked_for` records: for later ones they are looked for when they are
        # asked for, or when records leave the buffer. That is a tenth of the work of a read.
        self._keys: set[str] = set()
        self._keys_looked_for = 0
        self._unclaimed: list[Record] = []
        self._warned = False
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make anew what holds in one process only."""
        self._lock = threading.Lock()
        self._quiet = _Quiet()
        self._flights: dict[asyncio.AbstractEventLoop, asyncio.Future[bool]] = {}  # gone when they land

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"], state["_flights"], state["_quiet"]
        state["_keys"] = set(self._keys)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.after_fork()
        on_fork(self)

    @property
    def records(self) -> list[Record]:
        """The buffered records, in file order: a new list, at most `max_records` long."""
        return self._state.records(self._max_records)

    @property
    def total_read(self) -> int:
        """Records read since this reader was made."""
        return self._state.total_read

    @property
    def known_keys(self) -> set[str]:
        """Every key seen in a record, except `step`."""
        with self._lock:
            self._look_for_keys()
            return self._keys - {"step"}

    @property
    def cursor(self) -> str:
        """The position after the last record read, for a follower to go on from."""
        return self._state.position.cursor()

    @property
    def malformed(self) -> MalformedLines:
        """What was skipped in the file as it is now."""
        return self._state.malformed

    def snapshot(self) -> Batch:
        """The buffered records and the position after them, in one step."""
        state = self._state
        return Batch(state.records(self._max_records), state.position.cursor(), reset=False)

    async def aread(self) -> list[Record]:
        """The records that are new since the last call of any caller, however many.

        Callers on one event loop that come while a read is under way share the next one.

        Raises:
            RunStoreError: The storage failed; a missing file only has no records yet.
        """
        new: list[Record] = []
        try:
            await (self._read_to_end(new) if is_inline() else self._share_a_read(new))
            if self._unclaimed:
                self._claim(new)
        except BaseException:
            # Failed or cancelled half-way: the next read hands out what this one took.
            with self._lock:
                self._unclaimed += new
            raise
        return new

    def read(self) -> list[Record]:
        """Sync twin of `aread`."""
        return self._storage.run_sync(self.aread)

    async def aupdate(self) -> None:
        """Read on without handing out what is new: for whoever uses `records` or `snapshot`.

        However large the file is, no more is held than the buffer and what is fetched at a time.

        Raises:
            RunStoreError: The storage failed; a missing file only has no records yet.
        """
        await (self._read_to_end(None) if is_inline() else self._share_a_read(None))

    def update(self) -> None:
        """Sync twin of `aupdate`."""
        return self._storage.run_sync(self.aupdate)

    async def ahas_data(self) -> bool:
        """Whether records are in memory, or the file has bytes."""
        if self._state.buffered:
            return True
        stat = await self._storage.astat(self._path)
        return stat is not None and stat.size > 0

    def has_data(self) -> bool:
        """Sync twin of `ahas_data`."""
        return self._storage.run_sync(self.ahas_data)

    async def _share_a_read(self, new: list[Record] | None) -> None:
        """Read to the end of the file, or let another task of this loop do it."""
        loop = running_loop()
        # A read that began before this call may have missed what the caller wrote before it.
        if (earlier := self._flights.get(loop)) is not None:
            await asyncio.wait([earlier])
        while (flight := self._flights.get(loop)) is not None:
            await asyncio.wait([flight])
            if flight.result():
                return
        await self._lead(loop, new)

    async def _lead(self, loop: asyncio.AbstractEventLoop, new: list[Record] | None) -> None:
        flight = self._flights[loop] = loop.create_future()
        landed = False
        try:
            await self._read_to_end(new)
            landed = True
        finally:
            del self._flights[loop]
            flight.set_result(landed)

    async def _read_to_end(self, new: list[Record] | None) -> None:
        """Read until the file ends; whoever else reads on meanwhile keeps what it read."""
        position, signature = self._state.position, None
        if self._quiet.position is position and is_inline():
            signature = self._storage.signature(self._path)
            if self._is_quiet(signature):
                return
        ended = False
        ahead: ReadAhead | None = None
        try:
            while not ended:
                position = self._state.position
                fetched = await (
                    fetch(self._storage, self._path, position) if ahead is None else ahead.fetch(position)
                )
                if fetched is NOTHING_NEW:
                    self._quiet = _Quiet(position, signature, time.monotonic() + QUIET_SECONDS)
                    return
                if fetched.replaced:
                    self._restart(position)
                    continue
                if not fetched.at_end:
                    ahead = ahead or ReadAhead(self._storage, self._path)
                    ahead.begin(position, fetched)
                ended = await self._take_all(position, fetched, new) and fetched.at_end
        finally:
            if ahead is not None:
                await ahead.close()
        self._warn_once()

    def _is_quiet(self, signature: Hashable | None) -> bool:
        """Whether the file is as it was before a look that found nothing."""
        quiet = self._quiet
        return signature is not None and signature == quiet.signature and time.monotonic() < quiet.until

    async def _take_all(self, position: Position, fetched: Fetched, new: list[Record] | None) -> bool:
        """Move on over what was fetched after a position, or return `False` when another was faster."""
        for index, piece in enumerate(pieces(fetched.data, fetched.start, at_end=fetched.at_end)):
            if index:
                await breathe()
            taken = self._take(position, piece, new)
            while taken is not None and taken[1]:
                await breathe()
                taken = self._take(*taken, new, is_rest=True)
            if taken is None:
                return False
            position = taken[0]
        return True

    def _claim(self, new: list[Record]) -> None:
        """Put before `new` what an interrupted read took and could not hand out."""
        with self._lock:
            new[:0] = self._unclaimed
            self._unclaimed = []

    def _restart(self, position: Position) -> None:
        with self._lock:
            if self._state.position is position:
                self._look_for_keys()
                self._state = self._state.restart()

    def _take(
        self, position: Position, piece: bytes, new: list[Record] | None, *, is_rest: bool = False
    ) -> tuple[Position, bytes] | None:
        """Parse the piece after a position and move on, or `None` when another caller was faster.

        No caller keeps an older state while it parses: what that dropped is freed, and used anew, before
        it leaves the processor's cache.

        Returns:
            The position after what was taken of the piece, and the rest of it, which comes next.
        """
        with self._lock:
            state = self._state
            if state.position is not position:
                return None
            parsed, position = take(position, piece, is_rest=is_rest)
            records = parsed.records
            whole = state.after(parsed, position, len(piece) - len(parsed.rest))
            after = whole.within(self._max_records, self._max_bytes)
            if after is not whole:
                self._look_for_keys()
            if new is None:
                self._state = after
            else:
                # Nothing is called in between: an interrupt finds them handed out and counted, or neither.
                new += records
                self._state = after
        return position, parsed.rest

    def _look_for_keys(self) -> None:
        """Add the keys of the records read since the last time; with the lock held."""
        state = self._state
        self._keys |= state.keys_since(self._keys_looked_for)
        self._keys_looked_for = state.total_read

    def _warn_once(self) -> None:
        malformed = self._state.malformed
        if self._warned or not malformed.count:
            return
        self._warned = True
        first = malformed.latest[0]
        logger.warning(
            "%s: skipped %d malformed line(s), from line %d at byte %d on: %s; more will be counted silently",
            self._storage.url(self._path),
            malformed.count,
            first.line,
            first.offset,
            first.reason,
        )
