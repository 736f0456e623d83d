"""The operations of a storage, each in one of its two colours."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from runstore.storage import Storage, StorageListing, StorageStat

__all__ = ["Colours"]


class Colours:
    """The operations of a storage, each awaited or called as its sync twin.

    `writes` and `reads` say which: `"async"` or `"sync"`.
    """

    def __init__(self, storage: Storage, writes: str, reads: str) -> None:
        self.storage = storage
        self._awaited = {
            name: colour == "async"
            for colour, names in (
                (writes, ("write", "append", "append_lines", "remove", "remove_dir", "flush", "close")),
                (reads, ("read", "read_range", "stat", "exists", "list_dir", "scan", "find", "watch")),
            )
            for name in names
        }

    async def _call(self, name: str, *args: Any) -> Any:
        if self._awaited[name]:
            return await getattr(self.storage, f"a{name}")(*args)
        return getattr(self.storage, name)(*args)

    async def write(self, path: str, data: bytes) -> None:
        """`awrite` or `write`."""
        await self._call("write", path, data)

    async def append(self, path: str, data: bytes) -> None:
        """`aappend` or `append`."""
        await self._call("append", path, data)

    async def append_lines(self, path: str, data: bytes) -> None:
        """`aappend_lines` or `append_lines`."""
        await self._call("append_lines", path, data)

    async def remove(self, path: str) -> None:
        """`aremove` or `remove`."""
        await self._call("remove", path)

    async def remove_dir(self, path: str) -> None:
        """`aremove_dir` or `remove_dir`."""
        await self._call("remove_dir", path)

    async def flush(self) -> None:
        """`aflush` or `flush`."""
        await self._call("flush")

    async def close(self) -> None:
        """`aclose` or `close`."""
        await self._call("close")

    async def read(self, path: str) -> bytes:
        """`aread` or `read`."""
        data: bytes = await self._call("read", path)
        return data

    async def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        """`aread_range` or `read_range`."""
        data: bytes = await self._call("read_range", path, offset, length)
        return data

    async def stat(self, path: str) -> StorageStat | None:
        """`astat` or `stat`."""
        stat: StorageStat | None = await self._call("stat", path)
        return stat

    async def exists(self, path: str) -> bool:
        """`aexists` or `exists`."""
        there: bool = await self._call("exists", path)
        return there

    async def list_dir(self, prefix: str) -> list[str]:
        """`alist_dir` or `list_dir`."""
        names: list[str] = await self._call("list_dir", prefix)
        return names

    async def scan(self, prefix: str, known: StorageListing | None = None) -> StorageListing:
        """`ascan` or `scan`."""
        listing: StorageListing = await self._call("scan", prefix, known)
        return listing

    async def find(self, prefix: str, starting: str = "", depth: int | None = None) -> dict[str, StorageStat]:
        """`afind` or `find`."""
        files: dict[str, StorageStat] = await self._call("find", prefix, starting, depth)
        return files

    async def watch(self, path: str, seen: Hashable, seconds: float) -> Hashable:
        """`awatch` or `watch`."""
        token: Hashable = await self._call("watch", path, seen, seconds)
        return token
