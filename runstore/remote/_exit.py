"""The end of the process: what is pending is delivered, within seconds, and connections are closed.

Delivery needs threads (names are resolved in one), so that `atexit` would be too late for it: no thread
can start there any more. It runs before the interpreter waits for its other threads instead; what those
append after it is delivered at once, or stays in the spool.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Sequence

from runstore.errors import SpoolKeptWarning
from runstore.remote._appended import (
    EXIT_SECONDS,
    PREPARE_SECONDS,
    AppendedFile,
    appended_files,
    flush_all,
    prepare_all,
)
from runstore.remote._errors import warn
from runstore.remote._owners import Place
from runstore.remote._s3_client import clients
from runstore.storage._bridge import spawn_on_io_loop

__all__ = ["deliver_at_exit"]

_registered = threading.Event()
_reported: set[Place] = set()


def deliver_at_exit() -> None:
    """See to it that this process, and those forked off it, deliver at their end."""
    if _registered.is_set():
        return
    _registered.set()
    # What it registers must come before: callbacks run in reverse order.
    import concurrent.futures.thread  # noqa: F401, PLC0415

    register: Callable[[Callable[[], None]], None] = threading._register_atexit  # type: ignore[attr-defined]  # noqa: SLF001
    with contextlib.suppress(RuntimeError):  # the interpreter is ending already
        register(_deliver)
    atexit.register(_disconnect)


def _deliver() -> None:
    appended_files.exiting = True
    if appended_files.pending():
        with contextlib.suppress(Exception):  # reported by what is still pending
            spawn_on_io_loop(_deliver_pending).result(PREPARE_SECONDS + EXIT_SECONDS + 0.5)
    _report(appended_files.pending())


def _report(files: Sequence[AppendedFile]) -> None:
    for file in files:
        _reported.add(file.place)
        why = f" ({file.failure})" if file.failure is not None else ""
        warn(
            f"appends to {file.url} could not be delivered within {EXIT_SECONDS:g} s{why}; they stay in "
            f"{file.place.folder}, and the next process here that appends to this file, reads or flushes it "
            "delivers them",
            SpoolKeptWarning,
        )


async def _deliver_pending() -> None:
    await prepare_all(appended_files.pending())
    async with asyncio.timeout(EXIT_SECONDS):
        await flush_all(appended_files.pending())


def _disconnect() -> None:
    _report([file for file in appended_files.pending() if file.place not in _reported])
    if clients.connected:
        with contextlib.suppress(Exception):
            spawn_on_io_loop(_disconnect_all).result(1.5)
    for file in appended_files.all():
        file.spool.close()


async def _disconnect_all() -> None:
    async with asyncio.timeout(1):
        await clients.close()
