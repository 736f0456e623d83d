"""Followers: records of a JSONL file as they are written, for any number of readers.

One poller per file serves all followers of a process. It runs on the I/O loop and keeps the latest
chunks it read. A follower that is in step takes the next chunk; one that starts earlier in the file,
or falls behind, reads for itself from its own position up to the poller's, and is in step again. So
nothing is dropped, nobody waits for a slow follower, and each new byte is read once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from runstore.errors import InvalidInputError
from runstore.jsonl._batch import Batch
from runstore.jsonl._decode import Record
from runstore.jsonl._position import Bookmark, Position
from runstore.jsonl._scan import end_of_file, fetch, open_bookmark, steps
from runstore.storage import Storage
from runstore.storage._bridge import (
    WAKE_SECONDS,
    breathe,
    in_thread,
    is_inline,
    on_fork,
    running_loop,
    spawn_on_io_loop,
)

__all__ = ["AsyncFollower", "Follower"]

# Bytes of the file whose records a poller keeps for followers that are a little behind.
KEPT_SIZE = 4 * 1024 * 1024
# Bytes that a follower reads at a time while it catches up.
CATCH_UP_SIZE = 256 * 1024


class _Chunk(NamedTuple):
    """Records that came together; `position` is the one after them."""

    records: list[Record]
    position: Position
    reset: bool
    size: int
    cursor: str


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest thing that a poller knows: how many chunks there were, and the position after them."""

    count: int
    position: Position


class _Poller:
    """Reads what is appended to one file, as long as somebody follows it."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self.after_fork()
        on_fork(self)
        self._chunks: deque[_Chunk] = deque()
        self._kept_size = 0
        self._head: _Head | None = None
        self._followers: dict[int, float] = {}
        self._task: Future[None] | None = None
        self.ended = False

    def after_fork(self) -> None:
        """Forget who waits, in a forked child: those threads and loops are the parent's."""
        self._changed = threading.RLock()
        self._waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self._blocked: set[_Blocked] = set()

    def join(self, follower: int, interval: float) -> None:
        self._followers[follower] = interval
        if self._task is None:
            self._task = spawn_on_io_loop(self._run)
            self._task.add_done_callback(self._end)

    def _end(self, _: Future[None]) -> None:
        self.ended = True
        _pollers.drop(self, self._storage, self._path)
        self.wake()

    def leave(self, follower: int) -> None:
        self._followers.pop(follower, None)

    @property
    def followed(self) -> bool:
        return bool(self._followers)

    def raise_failure(self) -> None:
        """Raise what ended the poller, if anything did.

        Raises:
            RunStoreError: The storage failed.
        """
        if self._task is not None and self._task.done():
            self._task.result()

    @property
    def head(self) -> _Head | None:
        """The newest chunk's number and position; `None` before the first look at the file."""
        return self._head

    def chunk(self, number: int) -> _Chunk | None:
        """A chunk by its number, if it is still kept."""
        with self._changed:
            head = self._head
            index = 0 if head is None else number - (head.count - len(self._chunks)) - 1
            return self._chunks[index] if 0 <= index < len(self._chunks) else None

    async def wait_beyond(self, known: _Head | None, follower: _Follow) -> None:
        """Return when the head is another than `known`, the poller failed or the follower closed."""
        if is_inline():
            self._block_beyond(known, follower)
            return
        loop = running_loop()
        with self._changed:
            if self._is_news(known, follower):
                return
            woken = loop.create_future()
            self._waiting.setdefault(loop, []).append(woken)
        try:
            await woken
        finally:
            with self._changed, contextlib.suppress(KeyError, ValueError):
                self._waiting[loop].remove(woken)

    def _block_beyond(self, known: _Head | None, follower: _Follow) -> None:
        """Wait in this thread, with no lock held that an interrupt could find half released."""
        blocked = _Blocked()
        with self._changed:
            self._blocked.add(blocked)
        try:
            # An interrupt that arrives just before a wait is noticed when that wait is over.
            while not self._is_news(known, follower):
                blocked.wait(WAKE_SECONDS)
        finally:
            self._blocked.discard(blocked)

    def _is_news(self, known: _Head | None, follower: _Follow) -> bool:
        return self._head is not known or follower.closed or self.ended

    def wake(self, head: _Head | None = None) -> None:
        """Have everyone who waits look again, at a new head if there is one."""
        with self._changed:
            self._head = head or self._head
            for blocked in list(self._blocked):
                blocked.wake()
            waiting, self._waiting = self._waiting, {}
        for loop, futures in waiting.items():
            with contextlib.suppress(RuntimeError):  # that loop was closed with its tasks pending
                loop.call_soon_threadsafe(_wake_all, futures)

    async def _run(self) -> None:
        position = await end_of_file(self._storage, self._path)
        self.wake(_Head(0, position))
        seen: Hashable = None
        while not _pollers.retire(self, self._storage, self._path):
            interval = min(list(self._followers.values()), default=0.0)
            seen = await self._storage.awatch(self._path, seen, interval)
            position = await self._read_on(position)

    async def _read_on(self, position: Position) -> Position:
        reset = False
        while True:
            fetched = await fetch(self._storage, self._path, position)
            if fetched.replaced:
                position, reset = Position(line=None), True
                continue
            for parsed, after in steps(position, fetched.data, fetched.start, at_end=fetched.at_end):
                size, position = after.fetched - position.fetched, after
                if parsed.records:
                    self._publish(_Chunk(parsed.records, position, reset, size, position.cursor()))
                    reset = False
                await breathe()
            if fetched.at_end:
                break
        if reset:
            self._publish(_Chunk([], position, reset, 0, position.cursor()))
        return position

    def _publish(self, chunk: _Chunk) -> None:
        with self._changed:
            count = 0 if self._head is None else self._head.count
            self._chunks.append(chunk)
            self._kept_size += chunk.size
            while self._kept_size > KEPT_SIZE and len(self._chunks) > 1:
                self._kept_size -= self._chunks.popleft().size
            self.wake(_Head(count + 1, chunk.position))


class _Blocked:
    """A thread that waits: a lock that is taken until somebody wakes it."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, seconds: float) -> None:
        self._gate.acquire(timeout=seconds)

    def wake(self) -> None:
        if self._gate.locked():
            with contextlib.suppress(RuntimeError):  # another one woke it in this instant
                self._gate.release()


def _wake_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class _Pollers:
    """The pollers of this process, by storage and file."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        self._by_file: dict[tuple[Hashable, str], _Poller] = {}

    def join(self, storage: Storage, path: str, follower: int, interval: float) -> _Poller:
        key = (storage.identity(), path)
        with self._lock:
            poller = self._by_file.get(key)
            if poller is None or poller.ended:
                poller = self._by_file[key] = _Poller(storage, path)
            poller.join(follower, interval)
            return poller

    def leave(self, storage: Storage, path: str, follower: int) -> None:
        # Without the lock: a follower may be collected, and so leave, while any lock is held.
        poller = self._by_file.get((storage.identity(), path))
        if poller is not None:
            poller.leave(follower)

    def retire(self, poller: _Poller, storage: Storage, path: str) -> bool:
        """Whether nobody follows that file any more, so that its poller may end."""
        with self._lock:
            if poller.followed:
                return False
            self.drop(poller, storage, path)
            return True

    def drop(self, poller: _Poller, storage: Storage, path: str) -> None:
        """Forget a poller that ended."""
        with self._lock:
            if self.current(storage, path) is poller:
                del self._by_file[storage.identity(), path]

    def current(self, storage: Storage, path: str) -> _Poller | None:
        return self._by_file.get((storage.identity(), path))


_pollers = _Pollers()


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
        self._poller: _Poller | None = None
        self._taken: int | None = None  # chunks taken from the poller; None while out of step
        weakref.finalize(self, _pollers.leave, storage, path, id(self)).atexit = False

    def close(self) -> None:
        """End the iteration, wherever it is."""
        self.closed = True
        _pollers.leave(self.storage, self.path, id(self))
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

    async def _join(self) -> _Poller:
        """The poller of this follower's file: the one it has, or a new one after a failure or a fork."""
        poller = self._poller
        if poller is not None and not poller.ended and poller is _pollers.current(self.storage, self.path):
            return poller
        self._poller = self._taken = None
        if poller is not None:
            poller.raise_failure()
        poller = await in_thread(_pollers.join, self.storage, self.path, id(self), self._interval)
        self._poller = poller
        if self.closed:  # meanwhile, before there was anything to leave
            _pollers.leave(self.storage, self.path, id(self))
        return poller

    async def _start(self, head: _Head) -> Position:
        """Where this follower begins, when that is not the first record."""
        if self._bookmark is not None:
            position = await open_bookmark(self.storage, self.path, self._bookmark)
            self._reset = position is None
            return position or Position()
        stat = await self.storage.astat(self.path)
        if (0 if stat is None else stat.size) == head.position.fetched:
            return head.position
        return await end_of_file(self.storage, self.path)

    def _next_chunk(self, poller: _Poller) -> Batch | None:
        """What the poller read after the last chunk taken; `None` when it no longer keeps that."""
        chunk = poller.chunk((self._taken or 0) + 1)
        if chunk is None:
            self._taken = None
            return None
        self._taken = (self._taken or 0) + 1
        self._position = chunk.position
        return Batch(chunk.records, chunk.cursor, chunk.reset)

    async def _catch_up(self, poller: _Poller, head: _Head) -> Batch | None:
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
