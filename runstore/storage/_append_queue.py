"""Group commit: the appends that one event loop makes to one file while a write is under way go together.

The first append goes at once, in one hop; those that arrive meanwhile wait, and are then written in
call order by a single hop. Each caller gets its own outcome.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import NamedTuple

from runstore.errors import RunStoreError
from runstore.storage import _files
from runstore.storage._bridge import in_thread, on_fork, running_loop, settle

__all__ = ["queue_append"]


class _Waiting(NamedTuple):
    data: bytes
    whole_lines: bool
    done: asyncio.Future[None]


class _Queue:
    """The appends of one loop to one file, alive while one of them is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str, durable: bool) -> None:
        self._loop = loop
        self._path = path
        self._durable = durable
        self._waiting: list[_Waiting] = []
        self._commit: asyncio.Task[None] | None = None

    async def lead(self, data: bytes, whole_lines: bool) -> None:
        """Append at once, then start what came meanwhile."""
        try:
            await in_thread(_files.append, self._path, data, whole_lines, self._durable)
        finally:
            self._commit_waiting()

    async def follow(self, data: bytes, whole_lines: bool) -> None:
        """Append with the next commit."""
        entry = _Waiting(data, whole_lines, self._loop.create_future())
        self._waiting.append(entry)
        try:
            await entry.done
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif self._commit is not None:
                await settle(self._commit)
            raise

    def _commit_waiting(self) -> None:
        if self._waiting:
            batch, self._waiting = self._waiting, []
            self._commit = self._loop.create_task(self._write(batch))
        else:
            _queues.forget(self._loop, self._path, self._durable)

    async def _write(self, batch: list[_Waiting]) -> None:
        outcomes: list[RunStoreError | None] = []
        try:
            items = [(entry.data, entry.whole_lines) for entry in batch]
            outcomes = await in_thread(_files.append_all, self._path, items, self._durable)
        finally:
            for index, entry in enumerate(batch):
                _finish(entry.done, outcomes[index] if outcomes else None, interrupted=not outcomes)
            self._commit_waiting()


def _finish(done: asyncio.Future[None], error: RunStoreError | None, *, interrupted: bool) -> None:
    if done.done():
        return
    if interrupted:
        done.cancel()
    elif error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


class _Queues:
    """The queues at work, by loop and file."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[tuple[str, bool], _Queue]
        ] = weakref.WeakKeyDictionary()

    async def append(self, path: str, data: bytes, whole_lines: bool, durable: bool) -> None:
        loop = running_loop()
        queues = self._by_loop.get(loop)
        if queues is None:
            queues = self._by_loop.setdefault(loop, {})
        queue = queues.get((path, durable))
        if queue is not None:
            return await queue.follow(data, whole_lines)
        queue = queues[path, durable] = _Queue(loop, path, durable)
        return await queue.lead(data, whole_lines)

    def forget(self, loop: asyncio.AbstractEventLoop, path: str, durable: bool) -> None:
        self._by_loop[loop].pop((path, durable), None)


_queues = _Queues()


async def queue_append(path: str, data: bytes, whole_lines: bool, durable: bool) -> None:
    """Append to a file as a caller on an event loop.

    Args:
        path: Full path.
        data: Bytes to append.
        whole_lines: Keep them apart from an unfinished last line.
        durable: Sync the file to the disk before returning.
    """
    await _queues.append(path, data, whole_lines, durable)
