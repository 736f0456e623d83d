"""How sync calls reach async code, and how async code reaches blocking calls.

Three ways, and the whole package uses no other:

- `drive` finishes a coroutine in the calling thread. Its leaf operations see `is_inline()` and
  run in place, so nothing suspends: no loop, no thread, no hop. Local files use it.
- `in_thread` is the leaf of every blocking operation: in place under `drive`, else one hop to a
  thread of this module's own pool, so that hung paths never starve a loop's default executor.
- `call_on_io_loop`, `on_io_loop` and `spawn_on_io_loop` enter the I/O loop: one event loop per
  process, in a daemon thread, held for the life of the process. Remote sessions and followers live
  there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from runstore.errors import EventLoopError
from runstore.storage._crossing import Hop, PoolExecutor, Visit
from runstore.storage._patience import settle
from runstore.storage._threads import ThreadPool

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = [
    "WAKE_SECONDS",
    "breathe",
    "call_on_io_loop",
    "drive",
    "gather",
    "in_thread",
    "is_inline",
    "no_fork",
    "on_fork",
    "on_io_loop",
    "pause",
    "running_loop",
    "spawn_on_io_loop",
]

P = ParamSpec("P")
T = TypeVar("T")

OPERATION_THREADS = 32
WAKE_SECONDS = 0.25  # how long a signal may go unnoticed that came just before a thread waits
STRETCH_SECONDS = 0.001  # of work on a loop between two turns of it, each of which costs a hundredth
FOLLOWER_THREADS = 256  # spawned only while that many polls hang at once


class _Mode(threading.local):
    inline = False
    next_turn = 0.0


_mode = _Mode()


def is_inline() -> bool:
    """Whether this thread is inside `drive`, where nothing may suspend."""
    return _mode.inline


def drive(function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Finish `function(*args)` in this thread, running every leaf operation in place.

    Raises:
        EventLoopError: The coroutine suspended, which no operation on local files may do.
    """
    coroutine = function(*args, **kwargs)
    before = _mode.inline
    _mode.inline = True
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    finally:
        _mode.inline = before
    coroutine.close()
    name = getattr(function, "__qualname__", repr(function))
    msg = f"internal error: {name} suspended while a sync call was driving it; please report this"
    raise EventLoopError(msg)


def running_loop() -> asyncio.AbstractEventLoop:
    """The running asyncio loop.

    Raises:
        EventLoopError: There is none: another async library is running, or no loop at all.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        msg = (
            "the async methods need a running asyncio event loop (asyncio or uvloop); under trio, or "
            "without a loop, call the sync twin: the same name without its leading 'a'"
        )
        raise EventLoopError(msg) from None


class _IOLoop:
    """One asyncio loop in a daemon thread, entered through an anyio portal that is never left."""

    def __init__(self) -> None:
        # anyio.from_thread takes 96 ms to import: paid by the first call that needs it.
        from anyio.from_thread import BlockingPortal  # noqa: PLC0415

        self._portal_type = BlockingPortal
        self._ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, name="runstore-io", daemon=True)
        self._thread.start()
        self.portal = self._ready.result()

    def _run(self) -> None:
        try:
            # Debug off even under `python -X dev`: a slow task here is no fault of the user's.
            with asyncio.Runner(debug=False) as runner:
                runner.run(self._hold_portal())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)  # no descriptor left for a loop, say: the caller is told

    async def _hold_portal(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_default_executor(PoolExecutor(_shared.follower_polls))
        async with self._portal_type() as portal:
            self._ready.set_result(portal)
            await portal.sleep_until_stopped()

    def runs_here(self) -> bool:
        return threading.get_ident() == self._thread.ident


def _call(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    return function(*args)


class _Shared:
    """What a process owns once; made anew in a forked child, where no thread of it exists."""

    def __init__(self) -> None:
        # Held while something of this is made, and by whoever forks: a child never finds an import
        # half done, whose lock would stay held in it for ever.
        self.lock = threading.RLock()
        self.operations = ThreadPool("runstore-file", OPERATION_THREADS)
        self.follower_polls = ThreadPool("runstore-poll", FOLLOWER_THREADS)
        self.io_loop: _IOLoop | None = None
        self._until_io_loop: list[Callable[[], object]] = []  # what is to be called on it, in order
        self._waiting = threading.Lock()
        self._hop: Callable[..., Awaitable[Any]] | None = None

    @property
    def hop(self) -> Callable[..., Awaitable[Any]]:
        if self._hop is None:
            with self.lock:
                from aiofiles.os import wrap  # noqa: PLC0415  `import runstore` stays light

                self._hop = wrap(_call)
        return self._hop

    def enter_io_loop(self) -> _IOLoop:
        if self.io_loop is not None:  # the lock may be held for as long as an import takes
            return self.io_loop
        with self.lock:
            if self.io_loop is None:
                io_loop = _IOLoop()
                with self._waiting:
                    self.io_loop = io_loop
                    for call in self._until_io_loop:
                        io_loop.loop.call_soon_threadsafe(call)
                    self._until_io_loop = []
            return self.io_loop

    def call_soon_on_io_loop(self, call: Callable[[], object]) -> bool:
        """Have `call()` made on the I/O loop, in the order of these calls.

        Returns:
            Whether there is that loop; else it waits for who makes it.
        """
        with self._waiting:
            if self.io_loop is None:
                self._until_io_loop.append(call)
                return False
            self.io_loop.loop.call_soon_threadsafe(call)
            return True


_shared = _Shared()


class ForkAware(Protocol):
    """An object that makes its locks anew in a forked child."""

    def after_fork(self) -> None: ...


_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def on_fork(owner: ForkAware) -> None:
    """Have `owner.after_fork()` called in every forked child (a lock held elsewhere stays locked there)."""
    _fork_aware.add(owner)


def no_fork() -> AbstractContextManager[object]:
    """Hold off forks while something is made that a forked child has to find whole, or not at all."""
    return _shared.lock


def _before_fork() -> None:
    _shared.lock.acquire()


def _after_fork_in_parent() -> None:
    _shared.lock.release()


def _after_fork_in_child() -> None:
    global _shared  # noqa: PLW0603
    _shared = _Shared()
    _mode.inline = False
    for owner in list(_fork_aware):
        owner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


async def in_thread(function: Callable[..., T], /, *args: Any) -> T:
    """Run a blocking function: in place under `drive`, else in a thread, one hop in all.

    A cancelled caller waits for the thread to finish before it raises, so that nothing runs on
    behind its back (a cancelled write can never land after its successor).
    """
    if _mode.inline:
        return function(*args)
    loop = running_loop()
    io_loop = _shared.io_loop
    polls = io_loop is not None and io_loop.loop is loop
    hop = Hop(_shared.follower_polls if polls else _shared.operations, loop)
    try:
        result: T = await _shared.hop(function, args, executor=hop, loop=loop)
    except asyncio.CancelledError:
        await hop.give_up()
        raise
    return result


async def breathe() -> None:
    """Give the event loop a turn, unless it had one just before; nothing to do under `drive`."""
    if _mode.inline or time.monotonic() < _mode.next_turn:
        return
    await asyncio.sleep(0)
    _mode.next_turn = time.monotonic() + STRETCH_SECONDS


async def pause(seconds: float) -> None:
    """Wait: on the loop, or in place under `drive`."""
    if _mode.inline:
        time.sleep(seconds)  # noqa: ASYNC251  a sync call waits in its own thread
    else:
        await asyncio.sleep(seconds)


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], limit: int = 16) -> list[T]:
    """Results of several operations in order: `limit` at a time on a loop, in turn under `drive`."""
    if _mode.inline or len(calls) < 2:  # noqa: PLR2004
        return [await call() for call in calls]
    results: dict[int, T] = {}
    pending = iter(enumerate(calls))

    async def work() -> None:
        for index, call in pending:
            results[index] = await call()

    tasks = [asyncio.ensure_future(work()) for _ in range(min(limit, len(calls)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return [results[index] for index in range(len(calls))]


def call_on_io_loop(function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function(*args)` on the I/O loop and wait for its result in this thread.

    Raises:
        EventLoopError: This thread is the I/O loop's own, which would wait for itself.
    """
    if _shared.io_loop is not None and _shared.io_loop.runs_here():
        name = getattr(function, "__name__", repr(function))
        msg = f"a sync call on runstore's own I/O loop would wait for itself; await {name}(...) instead"
        raise EventLoopError(msg)
    future = _shared.enter_io_loop().portal.start_task_soon(lambda: function(*args, **kwargs))
    try:
        while not future.done():
            # An interrupt that arrives just before the wait is noticed when the wait is over.
            with contextlib.suppress(TimeoutError, CancelledError):
                future.exception(WAKE_SECONDS)
        return future.result()
    except BaseException:
        future.cancel()
        raise


def spawn_on_io_loop(function: Callable[[], Awaitable[T]]) -> Future[T]:
    """Start `function()` as a task of the I/O loop; cancelling the future cancels the task.

    Unlike a portal, this does not wait for the loop to take the task, so that it may be called with
    a lock held that tasks of the loop take too, and on the loop's own thread.
    """
    loop = _shared.enter_io_loop().loop

    async def task() -> T:
        return await function()

    return asyncio.run_coroutine_threadsafe(task(), loop)


async def on_io_loop(function: Callable[..., Awaitable[T]], /, *args: Any) -> T:
    """Await `function(*args)` on the I/O loop: as it is there, blocking under `drive`, else by one hop.

    A cancelled caller has the call cancelled too, and waits for its end before it raises.
    """
    if _mode.inline:
        return call_on_io_loop(function, *args)
    caller = running_loop()
    shared = _shared
    if shared.io_loop is not None and shared.io_loop.loop is caller:
        return await function(*args)
    visit = Visit(caller, functools.partial(function, *args))
    there = shared.call_soon_on_io_loop(visit.begin)
    try:
        if not there:
            await in_thread(shared.enter_io_loop)
        result: T = await visit.outcome
    except asyncio.CancelledError:
        if not shared.call_soon_on_io_loop(visit.cancel):
            await settle(asyncio.ensure_future(in_thread(shared.enter_io_loop)))
        await settle(visit.over)
        raise
    except BaseException:
        visit.outcome.cancel()  # where there is no loop, a later one must not begin it
        raise
    return result
