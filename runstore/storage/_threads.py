"""A pool of daemon threads for blocking calls, which hung calls neither fill up nor keep alive."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

__all__ = ["ThreadPool"]

Call = Callable[[], Callable[[], object]]
"""Work for a thread, which returns how to report what came of it."""

# While every thread has been at the same call for so long and others wait, the pool grows.
STUCK_SECONDS = 0.25
MOST_THREADS = 1024


class ThreadPool:
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
        self._work: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._finished = 0
        self._watched = False

    def start(self, call: Call) -> None:
        """Have a thread make the call, and then what it returns; neither may raise."""
        spawn = watch = False
        with self._lock:
            self._unfinished += 1
            self._work.put(call)
            if self._unfinished > self._threads:
                spawn = self._threads < self._limit
                watch = not spawn and not self._watched
                self._threads += spawn
                self._watched |= watch
        if spawn:
            self._spawn()
        elif watch:
            self._start(self._watch)

    def _spawn(self) -> None:
        """Start a thread that was counted already; where none can start, and none is there, work here."""
        if self._start(self._run):
            return
        with self._lock:
            self._threads -= 1
            alone = self._threads == 0
        if alone:  # the interpreter is ending, or the system allows no thread more
            with contextlib.suppress(queue.Empty):
                self._make(self._work.get_nowait())

    def _start(self, target: Callable[[], None]) -> bool:
        try:
            threading.Thread(target=target, name=self._name, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        while True:
            self._make(self._work.get())

    def _make(self, call: Call) -> None:
        report = call()
        # Counted before anyone hears of it: the caller's next call finds this thread free.
        with self._lock:
            self._unfinished -= 1
            self._finished += 1
        report()

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
