"""The one reader of a followed file in this process, and what it keeps for its followers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runstore.jsonl._decode import Record
from runstore.jsonl._position import Position
from runstore.jsonl._scan import end_of_file, fetch, steps
from runstore.storage import Storage
from runstore.storage._bridge import WAKE_SECONDS, breathe, is_inline, on_fork, running_loop, spawn_on_io_loop

__all__ = ["Chunk", "Head", "Poller", "pollers"]

# Bytes of the file whose records a poller keeps for followers that are a little behind.
KEPT_SIZE = 4 * 1024 * 1024


class Closable(Protocol):
    """What waits for a poller."""

    closed: bool


class Chunk(NamedTuple):
    """Records that came together; `position` is the one after them."""

    records: list[Record]
    position: Position
    reset: bool
    size: int
    cursor: str


@dataclass(frozen=True, slots=True)
class Head:
    """The newest thing that a poller knows: how many chunks there were, and the position after them."""

    count: int
    position: Position


class Poller:
    """Reads what is appended to one file, as long as somebody follows it."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self.after_fork()
        on_fork(self)
        self._chunks: deque[Chunk] = deque()
        self._kept_size = 0
        self._head: Head | None = None
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
        pollers.drop(self, self._storage, self._path)
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
    def head(self) -> Head | None:
        """The newest chunk's number and position; `None` before the first look at the file."""
        return self._head

    def chunk(self, number: int) -> Chunk | None:
        """A chunk by its number, if it is still kept."""
        with self._changed:
            head = self._head
            index = 0 if head is None else number - (head.count - len(self._chunks)) - 1
            return self._chunks[index] if 0 <= index < len(self._chunks) else None

    async def wait_beyond(self, known: Head | None, follower: Closable) -> None:
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

    def _block_beyond(self, known: Head | None, follower: Closable) -> None:
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

    def _is_news(self, known: Head | None, follower: Closable) -> bool:
        return self._head is not known or follower.closed or self.ended

    def wake(self, head: Head | None = None) -> None:
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
        self.wake(Head(0, position))
        seen: Hashable = None
        while not pollers.retire(self, self._storage, self._path):
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
                    self._publish(Chunk(parsed.records, position, reset, size, position.cursor()))
                    reset = False
                await breathe()
            if fetched.at_end:
                break
        if reset:
            self._publish(Chunk([], position, reset, 0, position.cursor()))
        return position

    def _publish(self, chunk: Chunk) -> None:
        with self._changed:
            count = 0 if self._head is None else self._head.count
            self._chunks.append(chunk)
            self._kept_size += chunk.size
            while self._kept_size > KEPT_SIZE and len(self._chunks) > 1:
                self._kept_size -= self._chunks.popleft().size
            self.wake(Head(count + 1, chunk.position))


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
        self._by_file: dict[tuple[Hashable, str], Poller] = {}

    def join(self, storage: Storage, path: str, follower: int, interval: float) -> Poller:
        key = (storage.identity(), path)
        with self._lock:
            poller = self._by_file.get(key)
            if poller is None or poller.ended:
                poller = self._by_file[key] = Poller(storage, path)
            poller.join(follower, interval)
            return poller

    def leave(self, storage: Storage, path: str, follower: int) -> None:
        # Without the lock: a follower may be collected, and so leave, while any lock is held.
        poller = self._by_file.get((storage.identity(), path))
        if poller is not None:
            poller.leave(follower)

    def retire(self, poller: Poller, storage: Storage, path: str) -> bool:
        """Whether nobody follows that file any more, so that its poller may end."""
        with self._lock:
            if poller.followed:
                return False
            self.drop(poller, storage, path)
            return True

    def drop(self, poller: Poller, storage: Storage, path: str) -> None:
        """Forget a poller that ended."""
        with self._lock:
            if self.current(storage, path) is poller:
                del self._by_file[storage.identity(), path]

    def current(self, storage: Storage, path: str) -> Poller | None:
        return self._by_file.get((storage.identity(), path))


pollers = _Pollers()
