"""Group commit: the appends that one event loop makes to one file while a write is under way go together.

The first append goes at once, in one hop; those that arrive meanwhile wait, and are then written in
call order by a single hop. Each caller gets its own outcome.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

from runstore.storage._bridge import in_thread, is_inline, on_fork, running_loop
from runstore.storage._patience import settle

__all__ = ["Append", "in_turn", "queue_append"]

T = TypeVar("T")


class Append(NamedTuple):
    """Bytes to append."""

    data: bytes
    whole_lines: bool
    """Keep them apart from an unfinished last line."""
    durable: bool
    """Sync the file to the disk before returning."""


AppendAll = Callable[[Sequence[Append]], Sequence[BaseException | None]]
"""A blocking call that appends in order and gives each its own outcome."""


class _Waiting(NamedTuple):
    append: Append
    done: asyncio.Future[None]


class _Queue:
    """The appends of one loop to one file, alive while one of them is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, key: Hashable, append_all: AppendAll) -> None:
        self._loop = loop
        self._key = key
        self._append_all = append_all
        self._waiting: dict[asyncio.Future[None], _Waiting] = {}
        self._commit: asyncio.Task[None] | None = None

    async def lead(self, append: Append) -> None:
        """Append at once, then start what came meanwhile."""
        try:
            (error,) = await in_thread(self._append_all, [append])
        finally:
            self._commit_waiting()
        if error is not None:
            raise error

    async def join(self, append: Append) -> None:
        """Append with the next commit."""
        entry = _Waiting(append, self._loop.create_future())
        self._waiting[entry.done] = entry
        try:
            await entry.done
        except asyncio.CancelledError:
            queued = self._waiting.pop(entry.done, None) is not None
            if not queued and entry.done.cancelled() and self._commit is not None:
                await settle(self._commit)
            raise

    def _commit_waiting(self) -> None:
        if self._waiting:
            batch, self._waiting = list(self._waiting.values()), {}
            self._commit = self._loop.create_task(self._write(batch))
        else:
            _queues.forget(self._loop, self._key)

    async def _write(self, batch: list[_Waiting]) -> None:
        outcomes: Sequence[BaseException | None] = [asyncio.CancelledError()] * len(batch)
        try:
            outcomes = await in_thread(self._append_all, [entry.append for entry in batch])
        except Exception as error:  # noqa: BLE001  it belongs to each caller of this commit
            outcomes = [error] * len(batch)
        finally:
            for entry, outcome in zip(batch, outcomes, strict=True):
                _finish(entry.done, outcome)
            self._commit_waiting()


def _finish(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    elif isinstance(error, asyncio.CancelledError):  # the loop is being shut down, with the commit on it
        done.cancel()
    else:
        done.set_exception(error)


class _Queues:
    """The queues at work, by loop and file."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Queue]]
        self._by_loop = weakref.WeakKeyDictionary()

    async def append(self, key: Hashable, append_all: AppendAll, append: Append) -> None:
        loop = running_loop()
        queues = self._by_loop.get(loop)
        if queues is None:
            queues = self._by_loop.setdefault(loop, {})
        queue = queues.get(key)
        if queue is not None:
            return await queue.join(append)
        queue = queues[key] = _Queue(loop, key, append_all)
        return await queue.lead(append)

    def forget(self, loop: asyncio.AbstractEventLoop, key: Hashable) -> None:
        self._by_loop[loop].pop(key, None)


_queues = _Queues()


async def queue_append(key: Hashable, append_all: AppendAll, append: Append) -> None:
    """Append to a file as a caller on an event loop.

    Args:
        key: What tells the file from all others.
        append_all: How to append to it.
        append: What to append.
    """
    await _queues.append(key, append_all, append)


class _Turns:
    """A lock for each thing that several tasks of a loop do one after the other."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Hashable, asyncio.Lock]
        ] = weakref.WeakKeyDictionary()

    def lock(self, key: Hashable) -> asyncio.Lock:
        locks = self._by_loop.setdefault(running_loop(), weakref.WeakValueDictionary())
        return locks.setdefault(key, asyncio.Lock())


_turns = _Turns()


async def in_turn(key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call()`, run when all earlier calls of this loop with the same key are over."""
    if is_inline():
        return await call()
    async with _turns.lock(key):
        return await call()
