"""Followers: records of a JSONL file as they are written, for any number of readers.

One poller per file serves all followers of a process. It runs on the I/O loop and keeps the latest
chunks it read. A follower that is in step takes the next chunk; one that starts earlier in the file,
or falls behind, reads for itself from its own position up to the poller's, and is in step again. So
nothing is dropped, nobody waits for a slow follower, and each new byte is read once.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Self

from runstore.errors import InvalidInputError
from runstore.jsonl._batch import Batch
from runstore.jsonl._decode import Record
from runstore.jsonl._poller import Head, Poller, pollers
from runstore.jsonl._position import Bookmark, Position
from runstore.jsonl._scan import end_of_file, fetch, open_bookmark, steps
from runstore.storage import Storage
from runstore.storage._bridge import breathe, in_thread

__all__ = ["AsyncFollower", "Follower"]

# Bytes that a follower reads at a time while it catches up.
CATCH_UP_SIZE = 256 * 1024


class _Follow:
    """One follower's place in its file, and how it moves on: shared by both colours."""

    def __init__(self, storage: Storage, path: str, cursor: str | None, interval: float) -> None:
        if interval <= 0:
            msg = f"interval must be positive seconds, not {interval}"
            raise InvalidInputError(msg)
        self.storage = storage.durable_view()  # a follower never causes a flush
        self.path = path
        self.closed = False
        self._interval = interval
        self._bookmark = Bookmark.parse(cursor) if cursor not in {None, "end"} else None
        self._position: Position | None = None if cursor is not None else Position()
        self._reset = False
        self._poller: Poller | None = None
        self._taken: int | None = None  # chunks taken from the poller; None while out of step
        weakref.finalize(self, pollers.leave, storage, path, id(self)).atexit = False

    def close(self) -> None:
        """End the iteration, wherever it is."""
        self.closed = True
        pollers.leave(self.storage, self.path, id(self))
        if self._poller is not None:
            self._poller.wake()

    async def advance(self) -> Batch | None:
        """The next batch, or `None` once closed."""
        while not self.closed:
            poller = await self._join()
            head = poller.head
            if head is None or self._taken == head.count:
                await poller.wait_beyond(head, self)
                continue
            if self._position is None:
                self._position = await self._start(head)
            batch = await self._catch_up(poller, head) if self._taken is None else self._next_chunk(poller)
            if batch is not None:
                return batch
        return None

    async def _join(self) -> Poller:
        """The poller of this follower's file: the one it has, or a new one after a failure or a fork."""
        poller = self._poller
        if poller is not None and not poller.ended and poller is pollers.current(self.storage, self.path):
            return poller
        self._poller = self._taken = None
        if poller is not None:
            poller.raise_failure()
        poller = await in_thread(pollers.join, self.storage, self.path, id(self), self._interval)
        self._poller = poller
        if self.closed:  # meanwhile, before there was anything to leave
            pollers.leave(self.storage, self.path, id(self))
        return poller

    async def _start(self, head: Head) -> Position:
        """Where this follower begins, when that is not the first record."""
        if self._bookmark is not None:
            position = await open_bookmark(self.storage, self.path, self._bookmark)
            self._reset = position is None
            return position or Position()
        stat = await self.storage.astat(self.path)
        if (0 if stat is None else stat.size) == head.position.fetched:
            return head.position
        return await end_of_file(self.storage, self.path)

    def _next_chunk(self, poller: Poller) -> Batch | None:
        """What the poller read after the last chunk taken; `None` when it no longer keeps that."""
        chunk = poller.chunk((self._taken or 0) + 1)
        if chunk is None:
            self._taken = None
            return None
        self._taken = (self._taken or 0) + 1
        self._position = chunk.position
        return Batch(chunk.records, chunk.cursor, chunk.reset)

    async def _catch_up(self, poller: Poller, head: Head) -> Batch | None:
        """Read from this follower's own position towards the poller's."""
        position = self._position or Position()
        if position.is_at(head.position):
            self._taken = head.count
            return self._batch([]) if self._reset else None
        most = max(CATCH_UP_SIZE, self.storage.fetch_size // 4)
        size = min(max(head.position.offset - position.fetched, 0), most)
        fetched = await fetch(self.storage, self.path, position, size)
        if fetched.replaced:
            self._position, self._reset = Position(), True
            return None
        if len(fetched.data) == fetched.start:
            if self._reset:
                return self._batch([])
            await poller.wait_beyond(head, self)  # ahead of the poller, which has not looked since
            return None
        records: list[Record] = []
        for parsed, after in steps(position, fetched.data, fetched.start):
            position = after
            records += parsed.records
            await breathe()
        self._position = position
        return self._batch(records) if records else None

    def _batch(self, records: list[Record]) -> Batch:
        reset, self._reset = self._reset, False
        return Batch(records, (self._position or Position()).cursor(), reset)


class AsyncFollower:
    """Batches of records as they are written: an async iterator.

    Leave its loop, or call `aclose` at any time, also while another task waits for the next batch.
    A failure of the storage is raised by the next step; iterating on after it tries again from the
    same place. The first step starts the follower.
    """

    def __init__(self, storage: Storage, path: str, cursor: str | None, interval: float) -> None:
        self._follow = _Follow(storage, path, cursor, interval)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._follow.advance()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """End the iteration; a task that waits for the next batch sees the end of the loop."""
        self._follow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._follow.close()


class Follower:
    """Batches of records as they are written: the sync twin of `AsyncFollower`.

    Waiting for a batch blocks the thread: inside a running event loop, where the writer may be a task of
    that loop, use the async one.
    """

    def __init__(self, storage: Storage, path: str, cursor: str | None, interval: float) -> None:
        self._follow = _Follow(storage, path, cursor, interval)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = self._follow.storage.run_sync(self._follow.advance)
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the iteration; a thread that waits for the next batch sees the end of the loop."""
        self._follow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
