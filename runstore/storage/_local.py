"""Runs on a local disk."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from runstore.errors import InvalidInputError
from runstore.storage import _files
from runstore.storage._answers import OpenFile, StorageListing, StorageStat
from runstore.storage._append_queue import Append, queue_append
from runstore.storage._base import Storage
from runstore.storage._bridge import drive, in_thread, is_inline, pause
from runstore.storage._listing import find, scan
from runstore.storage._local_file import LocalFile
from runstore.storage._local_watch import TICK, wait_for_change
from runstore.storage._paths import as_bytes, check_file, check_path, check_range, refuse_uri

__all__ = ["LocalStorage"]

P = ParamSpec("P")
T = TypeVar("T")


class LocalStorage(Storage):
    """Files below a folder of a local disk.

    Appends are one `write` on a descriptor opened with `O_APPEND`; whole writes go to a temporary
    file in the same folder, which then replaces the old one. What has been written survives the
    death of the process; with `fsync=True` it survives a power cut too, at milliseconds a call.
    """

    runs_in_place = True
    run_sync = staticmethod(drive)  # type: ignore[assignment, arg-type, var-annotated]  # no call in between
    run_append = run_sync

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        only_awaited = cls.aappend_lines is not LocalStorage.aappend_lines
        if only_awaited and cls.append_lines is LocalStorage.append_lines:
            cls.append_lines = Storage.append_lines  # type: ignore[method-assign]  # through the subclass's own

    def __init__(self, root: str | os.PathLike[str], *, mkdir: bool = True, fsync: bool = False) -> None:
        """Open a folder.

        Args:
            root: The folder; `~` is expanded.
            mkdir: Create it, with its parents, if it is not there. Without, it comes into being
                with the first write.
            fsync: Sync every write and append to the disk before it returns.

        Raises:
            InvalidInputError: It cannot be the path of a folder: a URI, a NUL character, an unknown user.
            AccessDeniedError: The folder is not there and may not be created.
        """
        self._root = _absolute(os.fspath(root))
        self._folder = str(self._root)
        self._base = self._folder.rstrip("/") + "/"
        self._fsync = fsync
        self._disk: int | None = None
        if mkdir:
            self.run_sync(self._make_folder)

    @property
    def root(self) -> Path:
        """The folder, as an absolute path."""
        return self._root

    def __repr__(self) -> str:
        return f"LocalStorage({self._folder!r})"

    def identity(self) -> Hashable:
        return self._folder

    def url(self, path: str = "") -> str:
        return Path(self._full(path)).as_uri()

    async def _make_folder(self) -> None:
        await in_thread(_files.make_folder, self._folder)

    def _full(self, path: str) -> str:
        checked = check_path(path)
        return self._base + checked if checked else self._folder

    def _full_to_write(self, path: str) -> str:
        return self._base + check_file(path)

    async def aread(self, path: str) -> bytes:
        full = self._full(path)
        if is_inline():  # as below: a registry reads two files a run
            return _files.read_range(full, 0, None)
        return await in_thread(_files.read_range, full, 0, None)

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            check_range(path, offset, length)
        full = self._full(path)
        # As `in_thread` does; asking here spares every sync poll a coroutine.
        if is_inline():
            return _files.read_range(full, offset, length)
        return await in_thread(_files.read_range, full, offset, length)

    async def awrite(self, path: str, data: bytes) -> None:
        if type(data) is not bytes:
            data = as_bytes(path, data)
        await in_thread(_files.write, self._full_to_write(path), data, self._fsync)

    async def aappend(self, path: str, data: bytes) -> None:
        if type(data) is not bytes:
            data = as_bytes(path, data)
        full = self._full_to_write(path)
        if is_inline():
            _files.append(full, data, False, self._fsync)
        else:
            await self._queue_append(full, Append(data, whole_lines=False, durable=self._fsync))

    def append_lines(self, path: str, data: bytes) -> None:
        # Not driven: the coroutines would cost a tenth of a write of metrics.
        if type(data) is not bytes:
            data = as_bytes(path, data)
        _files.append(self._base + check_file(path), data, True, self._fsync)

    async def aappend_lines(self, path: str, data: bytes) -> None:
        if type(data) is not bytes:
            data = as_bytes(path, data)
        full = self._full_to_write(path)
        if is_inline():
            _files.append(full, data, True, self._fsync)
        else:
            await self._queue_append(full, Append(data, whole_lines=True, durable=self._fsync))

    async def _queue_append(self, full: str, append: Append) -> None:
        await queue_append(full, partial(_files.append_all, full), append)

    async def astat(self, path: str) -> StorageStat | None:
        return await in_thread(_files.stat_file, self._full(path))

    async def alist_dir(self, prefix: str) -> list[str]:
        return await in_thread(_files.list_dir, self._full(prefix))

    async def ascan(self, prefix: str, known: StorageListing | None = None) -> StorageListing:
        full = self._full(prefix)
        if is_inline():  # as above: a registry scans hundreds of folders
            return scan(full, known)
        return await in_thread(scan, full, known)

    async def afind(
        self, prefix: str, starting: str = "", depth: int | None = None
    ) -> dict[str, StorageStat]:
        return await in_thread(find, self._full(prefix), starting, depth)

    async def aremove(self, path: str) -> None:
        await in_thread(_files.remove, self._full(path))

    async def aremove_dir(self, path: str) -> None:
        await in_thread(_files.remove_dir, self._full(path))

    def open_file(self, path: str) -> OpenFile | None:
        if getattr(self.aread_range, "__func__", None) is not LocalStorage.aread_range:
            return None  # somebody gives other bytes than the file has, or wants to see each read
        return LocalFile(self._full(path))

    def signature(self, path: str) -> Hashable | None:
        return _files.settled_signature(self._full(path))

    async def awatch(self, path: str, seen: Hashable, seconds: float) -> Hashable:
        full = self._full(path)
        if not isinstance(seen, tuple):
            return await in_thread(_files.signature, full)
        if is_inline():
            await pause(min(seconds, TICK))
            return _files.signature(full)
        if self._disk is None:
            self._disk = await in_thread(_files.disk_of, self._folder)
        return await wait_for_change(self._disk, full, seen, seconds)


def _absolute(root: str) -> Path:
    refuse_uri(root)
    try:
        path = Path(root).expanduser().absolute()
    except FileNotFoundError as error:
        msg = f"the current folder is gone, which {root!r} is relative to: change to another one"
        raise InvalidInputError(msg) from error
    except RuntimeError as error:
        msg = f"the folder {root!r} begins with a user whose home is not known: {error}"
        raise InvalidInputError(msg) from error
    if "\0" in root:
        msg = f"the folder {root!r} holds a NUL character"
        raise InvalidInputError(msg)
    return path
