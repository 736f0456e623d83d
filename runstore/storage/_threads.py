"""A pool of daemon threads for blocking calls, which hung calls neither fill up nor keep alive."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

__all__ = ["ThreadPool"]

P = ParamSpec("P")
T = TypeVar("T")

# While every thread has been at the same call for so long and others wait, the pool grows.
STUCK_SECONDS = 0.25
MOST_THREADS = 1024


class ThreadPool(Executor):
    """Daemon threads, spawned when all others are at work, up to a limit.

    Two things set it apart from the standard library's pool. That one joins its threads at exit, so
    that one hung path (a dead network mount, a pipe without a writer) would keep the interpreter
    from ending. And here the limit is doubled whenever all threads hang while others wait, so that
    many hung paths do not starve the next good one.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._finished = 0
        self._watched = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        spawn = watch = False
        with self._lock:
            self._unfinished += 1
            self._work.put((future, functools.partial(fn, *args, **kwargs)))
            if self._unfinished > self._threads:
                spawn = self._threads < self._limit
                watch = not spawn and not self._watched
                self._threads += spawn
                self._watched |= watch
        if spawn:
            self._spawn()
        elif watch:
            self._start(self._watch)
        return future

    def _spawn(self) -> None:
        """Start a thread that was counted already; where none can start, and none is there, work here."""
        if self._start(self._run):
            return
        with self._lock:
            self._threads -= 1
            alone = self._threads == 0
        if alone:  # the interpreter is ending, or the system allows no thread more
            with contextlib.suppress(queue.Empty):
                self._finish(*self._work.get_nowait())

    def _start(self, target: Callable[[], None]) -> bool:
        try:
            threading.Thread(target=target, name=self._name, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        while True:
            self._finish(*self._work.get())

    def _finish(self, future: Future[Any], call: Callable[[], Any]) -> None:
        wanted = future.set_running_or_notify_cancel()
        result, error = _outcome(call) if wanted else (None, None)
        # Counted before the caller wakes: its next call finds this thread free.
        with self._lock:
            self._unfinished -= 1
            self._finished += 1
        if error is not None:
            future.set_exception(error)
        elif wanted:
            future.set_result(result)

    def _watch(self) -> None:
        """Grow the pool while work waits and none is finished; end when none waits."""
        finished = -1
        while True:
            with self._lock:
                waiting = self._unfinished > self._threads
                if not waiting or self._limit >= MOST_THREADS:
                    self._watched = False
                    return
                stuck, finished = finished == self._finished, self._finished
                spawned = 0
                if stuck:
                    self._limit = min(self._limit * 2, MOST_THREADS)
                    spawned = min(self._limit, self._unfinished) - self._threads
                    self._threads += spawned
            for _ in range(spawned):
                self._spawn()
            time.sleep(STUCK_SECONDS)


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001  whatever it was, it belongs to the caller
        return None, error
