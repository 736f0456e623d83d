"""Waiting for what must not be broken off, however often whoever waits is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["finish", "settle", "still_wanted_after"]

T = TypeVar("T")


async def settle(future: asyncio.Future[Any]) -> None:
    """Wait for a future that must not be abandoned, however often the caller is cancelled."""
    import anyio  # noqa: PLC0415  only a cancelled operation comes here

    with anyio.CancelScope(shield=True):
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
    if not future.cancelled():
        future.exception()  # marked as seen: the caller raises its cancellation instead


_given_up: ContextVar[asyncio.Event | None] = ContextVar("_given_up", default=None)


async def finish(call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call()`, which is not broken off: a cancelled caller waits for its end, then raises.

    Only what waits in `still_wanted_after` there is told, and ends sooner.
    """
    given_up = _given_up.get() or asyncio.Event()
    token = _given_up.set(given_up)
    try:
        task = asyncio.ensure_future(call())
    finally:
        _given_up.reset(token)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        given_up.set()
        await settle(task)
        raise


async def still_wanted_after(seconds: float) -> bool:
    """Wait, and tell whether the caller of `finish` that this runs for has not been cancelled by then."""
    given_up = _given_up.get()
    if given_up is None:
        await asyncio.sleep(seconds)
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await given_up.wait()
    return not given_up.is_set()
