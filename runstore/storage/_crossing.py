"""Calls on their way from an event loop to a thread or another loop, and their outcomes on the way back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from runstore.storage._patience import settle
from runstore.storage._threads import ThreadPool

__all__ = ["Hop", "PoolExecutor", "Visit"]

T = TypeVar("T")


def _nothing() -> None:
    """The report of a call that was taken back."""


class Hop(Executor):
    """The executor of one hop: a call in a thread, its outcome brought back to the loop at one go.

    Its future is the loop's own, which `run_in_executor` hands out as it is. A cancelled caller can
    take the call back before a thread has begun it, and else wait for its end.
    """

    def __init__(self, pool: ThreadPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._begun = threading.Lock()  # taken by whoever comes first: the thread, or who takes it back
        self._over = False
        self._waiting: asyncio.Future[None] | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future = self._loop.create_future()
        self._pool.start(functools.partial(self._make, future, fn, args))
        return future  # type: ignore[return-value]  # asyncio takes its own futures too

    def _make(
        self, future: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Callable[[], None]:
        if not self._begun.acquire(blocking=False):
            return _nothing
        try:
            result, error = function(*args), None
        except BaseException as raised:  # noqa: BLE001  whatever it was, it belongs to the caller
            result, error = None, raised
        return functools.partial(self._report, future, result, error)

    def _report(self, *outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed with this under way
            self._loop.call_soon_threadsafe(self._deliver, *outcome)

    def _deliver(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._over = True
        if self._waiting is not None:
            self._waiting.set_result(None)
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    async def give_up(self) -> None:
        """Take the call back, or wait for its end when a thread has begun it."""
        if not self._over and not self._begun.acquire(blocking=False):
            self._waiting = self._loop.create_future()
            await settle(self._waiting)


class Visit:
    """A call that a task of another loop makes on the I/O loop."""

    def __init__(self, caller: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[Any]]) -> None:
        self._caller = caller
        self._call = call
        self._task: asyncio.Future[Any] | None = None
        self.outcome: asyncio.Future[Any] = caller.create_future()
        self.over: asyncio.Future[None] = caller.create_future()

    def begin(self) -> None:
        if self.outcome.done():  # the caller has given up
            self._call_back(self.over.set_result, None)
            return
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._report)

    async def _run(self) -> Any:
        return await self._call()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _report(self, task: asyncio.Future[Any]) -> None:
        # Of a task that was cancelled before its first step no line runs, but this does.
        if not task.cancelled():
            task.exception()  # marked as seen: whatever it was, it belongs to the caller
        self._call_back(self._deliver, task)

    def _call_back(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop was closed meanwhile
            self._caller.call_soon_threadsafe(function, *args)

    def _deliver(self, task: asyncio.Future[Any]) -> None:
        self.over.set_result(None)
        if self.outcome.cancelled():
            return
        if task.cancelled():
            self.outcome.cancel()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class PoolExecutor(ThreadPoolExecutor):
    """What clients on the I/O loop run in threads (resolving names, say), in those of this module's pool.

    Those need not be joined at exit, and do without a new one where none can start any more.
    """

    def __init__(self, pool: ThreadPool) -> None:
        super().__init__(1, "runstore-none")  # it never starts one of its own
        self._pool = pool

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._pool.start(functools.partial(self._make, future, functools.partial(fn, *args, **kwargs)))
        return future

    @staticmethod
    def _make(future: Future[T], call: Callable[[], T]) -> Callable[[], None]:
        if not future.set_running_or_notify_cancel():
            return _nothing
        try:
            return functools.partial(future.set_result, call())
        except BaseException as error:  # noqa: BLE001  whatever it was, it belongs to the caller
            return functools.partial(future.set_exception, error)
