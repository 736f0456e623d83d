"""Storages that have only sync methods, as code written for `tinker_cookbook.stores` makes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from runstore.errors import RunStoreError
from runstore.storage._answers import StorageListing, StorageStat
from runstore.storage._append_queue import Append, queue_append
from runstore.storage._base import SYNC_METHODS, Storage
from runstore.storage._bridge import in_thread, is_inline
from runstore.storage._errors import storage_error, write_error
from runstore.storage._paths import check_file, check_path, check_range, storage_join

__all__ = ["SyncMethods", "SyncOnlyStorage"]

P = ParamSpec("P")
T = TypeVar("T")


class SyncMethods(Protocol):
    """What such an object must have; `flush` and `close` are called where they exist."""

    def url(self, path: str = "") -> str: ...
    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: bytes) -> None: ...
    def append(self, path: str, data: bytes) -> None: ...
    def exists(self, path: str) -> bool: ...
    def stat(self, path: str) -> StorageStat | None: ...
    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes: ...
    def list_dir(self, prefix: str) -> list[str]: ...
    def remove(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...


class SyncOnlyStorage(Storage):
    """An object with sync methods as a storage: they run in threads, or in place for a sync caller."""

    runs_in_place = True

    def __init__(self, wrapped: object) -> None:
        """Wrap the object.

        Raises:
            TypeError: It lacks one of the methods, which the message names.
        """
        missing = [name for name in ("url", *SYNC_METHODS) if not callable(getattr(wrapped, name, None))]
        if missing:
            msg = (
                f"{type(wrapped).__name__} is no storage: pass a Storage, a path, a URI, or an object "
                f"with the methods of one (it has no {', '.join(missing)})"
            )
            raise TypeError(msg)
        self.wrapped = cast("SyncMethods", wrapped)

    def __repr__(self) -> str:
        return f"SyncOnlyStorage({self.wrapped!r})"

    def __getattr__(self, name: str) -> Any:
        """What the object has beside the methods of a storage."""
        if name == "wrapped" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def identity(self) -> Hashable:
        return id(self.wrapped)

    def url(self, path: str = "") -> str:
        return self.wrapped.url(check_path(path))

    async def aread(self, path: str) -> bytes:
        return await self._call(self.wrapped.read, check_path(path))

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        check_range(path, offset, length)
        return await self._call(self.wrapped.read_range, check_path(path), offset, length)

    async def awrite(self, path: str, data: bytes) -> None:
        await self._call(self.wrapped.write, check_file(path), data, to_error=write_error)

    async def aappend(self, path: str, data: bytes) -> None:
        await self._append(check_file(path), Append(data, whole_lines=False, durable=False))

    async def aappend_lines(self, path: str, data: bytes) -> None:
        await self._append(check_file(path), Append(data, whole_lines=True, durable=False))

    async def _append(self, path: str, append: Append) -> None:
        append_all = partial(self._append_all, path)
        if is_inline():
            (error,) = append_all([append])
            if error is not None:
                raise error
        else:
            await queue_append((id(self.wrapped), path), append_all, append)

    def _append_all(self, path: str, appends: Sequence[Append]) -> list[BaseException | None]:
        return [self._outcome(path, data, whole_lines) for data, whole_lines, _ in appends]

    def _outcome(self, path: str, data: bytes, whole_lines: bool) -> BaseException | None:
        try:
            self.wrapped.append(path, self._apart(path, data) if whole_lines else data)
        except RunStoreError as error:
            return error
        except OSError as error:
            failure = write_error(error, path)
            failure.__cause__ = error
            return failure
        except Exception as error:  # noqa: BLE001  it belongs to the caller of this append
            return error
        return None

    def _apart(self, path: str, data: bytes) -> bytes:
        """Whole lines, with a newline before them if the last line of the file is unfinished."""
        stat = self._stat(path)
        torn = stat and stat.size and self.wrapped.read_range(path, stat.size - 1, 1) not in {b"", b"\n"}
        return b"\n" + data if torn else data

    async def astat(self, path: str) -> StorageStat | None:
        return await self._call(self._stat, check_path(path))

    async def alist_dir(self, prefix: str) -> list[str]:
        return sorted(await self._call(self.wrapped.list_dir, check_path(prefix)))

    async def ascan(
        self,
        prefix: str,
        known: StorageListing | None = None,  # noqa: ARG002  the wrapped object cannot use it
    ) -> StorageListing:
        return await self._call(self._scan, check_path(prefix))

    async def aremove(self, path: str) -> None:
        await self._call(self._remove, check_path(path))

    async def aremove_dir(self, path: str) -> None:
        await self._call(self.wrapped.remove_dir, check_path(path))

    def _stat(self, path: str) -> StorageStat | None:
        stat = self.wrapped.stat(path)
        if stat is None:
            return None
        # Such objects may give a folder a size too; only a file can be read.
        try:
            self.wrapped.read_range(path, 0, 1)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except OSError:
            pass
        return StorageStat(stat.size, stat.mtime)

    def _scan(self, prefix: str) -> StorageListing:
        listing = StorageListing()
        for name in sorted(self.wrapped.list_dir(prefix)):
            stat = self._stat(storage_join(prefix, name))
            if stat is None:
                listing.folders.append(name)
            else:
                listing.files[name] = stat
        return listing

    def _remove(self, path: str) -> None:
        try:
            self.wrapped.remove(path)
        except (FileNotFoundError, IsADirectoryError):
            return
        except OSError:
            if self.wrapped.stat(path) is not None and self._stat(path) is None:
                return  # a folder: some systems say only that this is not permitted
            raise

    @staticmethod
    async def _call(
        function: Callable[..., T],
        path: str,
        *args: Any,
        to_error: Callable[[OSError, str], RunStoreError] = storage_error,
    ) -> T:
        """Call a method of the wrapped object, its errors turned into those of this package."""
        try:
            return await in_thread(function, path, *args)
        except RunStoreError:
            raise
        except OSError as error:
            raise to_error(error, path) from error

    async def aflush(self) -> None:
        await self._call_if_there("flush")

    async def aclose(self) -> None:
        await self.aflush()
        await self._call_if_there("close")

    async def _call_if_there(self, name: str) -> None:
        method = getattr(self.wrapped, name, None)
        if method is not None:
            await in_thread(method)
