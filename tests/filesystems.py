"""Filesystems of fsspec for tests: object stores without appends, synchronous and asynchronous."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fsspec import register_implementation
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["AsyncObjects", "Objects", "WholeFilesOnDisk"]


def _refuse_appending(mode: str) -> None:
    if "a" in mode or "+" in mode:
        msg = f"an object is written whole, not with mode {mode!r}"
        raise NotImplementedError(msg)


class Objects(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects in the memory of this process, which cannot be appended to."""

    protocol = "objects"
    store: dict[str, Any] = {}  # noqa: RUF012  shared by all instances
    pseudo_dirs = [""]  # noqa: RUF012  the same

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("objects://"))
        return stripped

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        _refuse_appending(mode)
        return super()._open(path, mode, **kwargs)


class WholeFilesOnDisk(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files in folders that have to be made first, which are replaced as a whole, as objects are."""

    protocol = "whole"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        unfinished = Path(path).parent / f".{secrets.token_hex(8)}.runstore-temp"
        unfinished.write_bytes(value)
        unfinished.replace(path)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        _refuse_appending(mode)
        return super()._open(path, mode, **kwargs)


class AsyncObjects(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects in a dict, by methods that really suspend, on the event loop that they were made for only.

    A range at or past an object's end is an error, as with several stores.
    """

    protocol = "asyncobjects"
    objects: dict[str, tuple[bytes, float]] = {}  # noqa: RUF012  shared by all instances

    def __init__(self, latency: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._latency = latency
        self._session: asyncio.AbstractEventLoop | None = None

    async def _connected(self) -> None:
        """A session belongs to the loop that opened it."""
        running = asyncio.get_running_loop()
        if self._session is None:
            self._session = running
        if self._session is not running:
            msg = "attached to a different loop"
            raise RuntimeError(msg)
        await asyncio.sleep(self._latency)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await self._connected()
        if path not in self.objects:
            raise FileNotFoundError(path)
        data = self.objects[path][0]
        if start is not None and start >= len(data):
            msg = f"416: the range begins at {start} of {len(data)} bytes"
            raise OSError(msg)
        return data[start:end]

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        await self._connected()
        self.objects[path] = (bytes(value), time.time())

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._connected()
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await self._connected()
        if path in self.objects:
            return self._entry(path)
        if any(key.startswith(f"{path}/") for key in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def _entry(self, path: str) -> dict[str, Any]:
        data, changed = self.objects[path]
        return {"name": path, "size": len(data), "type": "file", "mtime": changed}

    async def _ls(self, path: str, *, detail: bool = True, **_: Any) -> list[Any]:
        await self._connected()
        entries = list(self._children(path.rstrip("/")))
        if not entries:
            raise FileNotFoundError(path)
        return entries if detail else [entry["name"] for entry in entries]

    def _children(self, path: str) -> Iterator[dict[str, Any]]:
        if path in self.objects:
            yield self._entry(path)
            return
        seen = set()
        for key in sorted(self.objects):
            if key.startswith(f"{path}/"):
                name, slash, _ = key[len(path) + 1 :].partition("/")
                if slash and name not in seen:
                    seen.add(name)
                    yield {"name": f"{path}/{name}", "size": 0, "type": "directory"}
                elif not slash:
                    yield self._entry(key)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> NoReturn:
        msg = "objects are read and written whole"
        raise NotImplementedError(msg)


for _kind in (Objects, WholeFilesOnDisk, AsyncObjects):
    register_implementation(_kind.protocol, _kind, clobber=True)
