"""Calls to fsspec filesystems: asynchronous ones on the I/O loop, others one at a time in threads."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from runstore.storage._bridge import in_thread, on_fork

__all__ = ["Filesystem", "filesystems"]

T = TypeVar("T")


class Filesystem:
    """One filesystem of this process, made at its first call."""

    def __init__(self, kind: Any, options: Mapping[str, Any], instance: Any, lock: threading.Lock) -> None:
        self._kind = kind
        self._options = options
        self._made: Any = instance
        self._given = instance is not None
        # fsspec does not say that filesystems may be shared by threads; some must not.
        self._one_at_a_time = lock
        self._making = asyncio.Lock()
        self._holders: weakref.WeakSet[object] = weakref.WeakSet()
        self.process = os.getpid()

    def hold(self, holder: object) -> None:
        """Keep connections open until this holder, and all others, have released them or are gone."""
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """Let go of what was made here when nobody else holds it; its finalizer closes connections."""
        self._holders.discard(holder)
        if not self._holders and not self._given:
            self._made = None

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
            return self._made

    def _make_for(self, loop: asyncio.AbstractEventLoop) -> Any:
        return self._kind(
            asynchronous=True, loop=loop, skip_instance_cache=True, use_listings_cache=False, **self._options
        )


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

    def get(self, identity: Hashable, kind: Any, options: Mapping[str, Any], instance: Any) -> Filesystem:
        """The filesystem of a class and options, or the one that was handed over."""
        found = self._by_identity.get(identity)
        if found is None:
            lock = self._locks.setdefault((kind, options.get("host")), threading.Lock())
            found = Filesystem(kind, options, instance, lock)
            found = self._by_identity.setdefault(identity, found)
        return found


filesystems = _Filesystems()
