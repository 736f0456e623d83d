"""Seeing changes of local files soon, at next to no cost while there are none.

One task per event loop and disk looks at every watched file in a single hop, every `TICK`. Files of
another disk have a task of their own, so that a hung mount holds up only who follows files there.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import NamedTuple

from runstore.storage import _files
from runstore.storage._bridge import in_thread, on_fork, running_loop

__all__ = ["Signature", "wait_for_change"]

TICK = 0.02

Signature = tuple[int, ...]


class _Waiter(NamedTuple):
    path: str
    seen: Signature
    changed: asyncio.Future[Signature]


class _Watch:
    """The waiters of one loop for the files of one disk."""

    def __init__(self) -> None:
        self._waiters: set[_Waiter] = set()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, path: str, seen: Signature, seconds: float) -> Signature:
        waiter = _Waiter(path, seen, running_loop().create_future())
        self._waiters.add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._look())
        try:
            async with asyncio.timeout(seconds):
                return await waiter.changed
        except TimeoutError:
            return seen
        finally:
            self._waiters.discard(waiter)

    async def _look(self) -> None:
        while self._waiters:
            await asyncio.sleep(TICK)
            paths = {waiter.path for waiter in self._waiters}
            now = await in_thread(_signatures, paths)
            for waiter in list(self._waiters):
                if not waiter.changed.done() and now.get(waiter.path, waiter.seen) != waiter.seen:
                    waiter.changed.set_result(now[waiter.path])


def _signatures(paths: set[str]) -> dict[str, Signature]:
    return {path: _files.signature(path) for path in paths}


class _Watches:
    """The watches at work, by loop and disk."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int | None, _Watch]]
        self._by_loop = weakref.WeakKeyDictionary()

    def get(self, disk: int | None) -> _Watch:
        return self._by_loop.setdefault(running_loop(), {}).setdefault(disk, _Watch())


_watches = _Watches()


async def wait_for_change(disk: int | None, path: str, seen: Signature, seconds: float) -> Signature:
    """The signature of a file as soon as it differs from `seen`, or `seen` after `seconds`.

    Args:
        disk: Number of the disk that the file is on.
        path: Full path of the file; it may be missing.
        seen: The signature known so far.
        seconds: The longest wait.
    """
    return await _watches.get(disk).wait(path, seen, seconds)
