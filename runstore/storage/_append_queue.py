"""Group commit: the appends that one event loop makes to one file while a write is under way go together.

The first append goes at once, in one hop; those that arrive meanwhile wait, and are then written in
call order by a single hop. Each caller gets its own outcome.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from runstore.storage import _files
from runstore.storage._bridge import in_thread, on_fork, running_loop, settle

__all__ = ["queue_append"]


class _Append(NamedTuple):
    data: bytes
    whole_lines: bool
    durable: bool


class _Waiting(NamedTuple):
    append: _Append
    done: asyncio.Future[None]


class _Queue:
    """The appends of one loop to one file, alive while one of them is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self._loop = loop
        self._path = path
        self._waiting: dict[asyncio.Future[None], _Waiting] = {}
        self._commit: asyncio.Task[None] | None = None

    async def lead(self, append: _Append) -> None:
        """Append at once, then start what came meanwhile."""
        try:
            await in_thread(_files.append, self._path, *append)
        finally:
            self._commit_waiting()

    async def follow(self, append: _Append) -> None:
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
            _queues.forget(self._loop, self._path)

    async def _write(self, batch: list[_Waiting]) -> None:
        items = [(entry.append.data, entry.append.whole_lines) for entry in batch]
        durable = any(entry.append.durable for entry in batch)
        outcomes: Sequence[BaseException | None] = [asyncio.CancelledError()] * len(batch)
        try:
            outcomes = await in_thread(_files.append_all, self._path, items, durable)
        finally:
            for entry, error in zip(batch, outcomes, strict=True):
                _finish(entry.done, error)
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
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Queue]]
        self._by_loop = weakref.WeakKeyDictionary()

    async def append(self, path: str, append: _Append) -> None:
        loop = running_loop()
        queues = self._by_loop.get(loop)
        if queues is None:
            queues = self._by_loop.setdefault(loop, {})
        queue = queues.get(path)
        if queue is not None:
            return await queue.follow(append)
        queue = queues[path] = _Queue(loop, path)
        return await queue.lead(append)

    def forget(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self._by_loop[loop].pop(path, None)


_queues = _Queues()


async def queue_append(path: str, data: bytes, whole_lines: bool, durable: bool) -> None:
    """Append to a file as a caller on an event loop.

    Args:
        path: Full path.
        data: Bytes to append.
        whole_lines: Keep them apart from an unfinished last line.
        durable: Sync the file to the disk before returning.
    """
    await _queues.append(path, _Append(data, whole_lines, durable))
