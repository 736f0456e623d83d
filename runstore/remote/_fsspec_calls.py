"""Calls to fsspec filesystems: asynchronous ones on the I/O loop, others one at a time in threads."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from runstore.remote._shared import Shared
from runstore.storage._bridge import call_on_io_loop, in_thread, on_fork

__all__ = ["Filesystem", "filesystems"]

T = TypeVar("T")

EXIT_SECONDS = 1.0


class Filesystem(Shared):
    """One filesystem of this process, made at its first call."""

    def __init__(self, kind: Any, options: Mapping[str, Any], instance: Any, lock: threading.Lock) -> None:
        super().__init__()
        self._kind = kind
        self._options = options
        self._made: Any = instance
        self._given = instance is not None
        # fsspec does not say that filesystems may be shared by threads; some must not.
        self._one_at_a_time = lock
        self._making = asyncio.Lock()
        self.process = os.getpid()

    async def close(self) -> None:
        if self._given:  # what was not made here is not closed here
            return
        made, self._made = self._made, None
        if made is not None and self._kind.async_impl:
            await _finalize(made)

    async def call(self, name: str, key: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method for a file."""
        if self._kind.async_impl:
            return await getattr(await self._of_this_loop(), f"_{name}")(key, *args, **kwargs)
        return await self.run(lambda filesystem: getattr(filesystem, name)(key, *args, **kwargs))

    async def run(self, function: Callable[[Any], T]) -> T:
        """Run a blocking function of a filesystem that is not asynchronous."""
        return await in_thread(self._run, function)

    def _run(self, function: Callable[[Any], T]) -> T:
        with self._one_at_a_time:
            if self._made is None:
                self._made = self._kind(skip_instance_cache=True, **self._options)
            self._made.invalidate_cache()  # others may have written since
            return function(self._made)

    async def _of_this_loop(self) -> Any:
        async with self._making:
            if self._made is None:
                self._made = await in_thread(self._make_for, asyncio.get_running_loop())
                filesystems.close_at_exit()
            return self._made

    def _make_for(self, loop: asyncio.AbstractEventLoop) -> Any:
        return self._kind(
            asynchronous=True, loop=loop, skip_instance_cache=True, use_listings_cache=False, **self._options
        )


async def _finalize(filesystem: Any) -> None:
    """Close the connections of an asynchronous filesystem, for which fsspec has no method."""
    # aiohttp's, of http and of gcsfs
    close_session = getattr(getattr(filesystem, "_session", None), "close", None)
    if inspect.iscoroutinefunction(close_session):
        await close_session()
    for close, arguments in _left_to_exit(filesystem):
        with contextlib.suppress(Exception):
            await close(*arguments)


def _left_to_exit(filesystem: Any) -> Iterator[tuple[Callable[..., Awaitable[None]], list[Any]]]:
    """What a filesystem (adlfs's, say) wants `sync` to do at exit, where it fails without its loop."""
    from fsspec.asyn import sync  # noqa: PLC0415  `import runstore` stays light

    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001  there is no public way
        found = finalizer.peek()
        if found and found[0] is filesystem and found[1] is sync:
            finalizer.detach()
            _loop, close, *arguments = found[2]
            yield close, arguments


class _Filesystems:
    """The filesystems in use in this process, by what tells them from others."""

    def __init__(self) -> None:
        self._left: list[Filesystem] = []
        self._by_identity: weakref.WeakValueDictionary[Hashable, Filesystem] = weakref.WeakValueDictionary()
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        # Kept, not closed: their sockets are the parent's too.
        self._left += self._by_identity.values()
        self._by_identity = weakref.WeakValueDictionary()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._closes_at_exit = False

    def close_at_exit(self) -> None:
        """See to it that asynchronous filesystems are closed while their loop runs.

        To be called when one was made: its own callbacks at exit then come after.
        """
        if not self._closes_at_exit:
            self._closes_at_exit = True
            atexit.register(self._close_all_at_exit)

    def _close_all_at_exit(self) -> None:
        with contextlib.suppress(Exception):
            call_on_io_loop(asyncio.wait_for, self._close_all(), EXIT_SECONDS)

    async def _close_all(self) -> None:
        for filesystem in list(self._by_identity.values()):
            await filesystem.close()

    def get(self, identity: Hashable, kind: Any, options: Mapping[str, Any], instance: Any) -> Filesystem:
        """The filesystem of a class and options, or the one that was handed over."""
        found = self._by_identity.get(identity)
        if found is None:
            lock = self._locks.setdefault((kind, options.get("host")), threading.Lock())
            found = Filesystem(kind, options, instance, lock)
            found = self._by_identity.setdefault(identity, found)
        return found


filesystems = _Filesystems()
