"""Files of any fsspec filesystem: asynchronous ones on the I/O loop, others in threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import secrets
import threading
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

from runstore.errors import RunStoreError, StorageIOError
from runstore.remote._appended import Committer
from runstore.remote._errors import Target, remote_error
from runstore.remote._files import RemoteFiles
from runstore.remote._retry import Attempts
from runstore.remote._segment import Base, Segment, joined
from runstore.remote._spool import Spool
from runstore.storage._base import StorageListing, StorageStat
from runstore.storage._bridge import in_thread, on_fork

__all__ = ["FsspecFiles"]

# With real folders, files that can be appended to, and renames that replace.
_DISKS = {"file", "local", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs"}
_APPENDING = {*_DISKS, "memory"}
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_TEMP_SUFFIX = ".runstore-temp"
_BUDGET_SECONDS = 20.0


class _Filesystems:
    """The filesystems that this process has made, by class and options."""

    def __init__(self) -> None:
        self._left: list[Any] = []
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        # Kept, not closed: their sockets are the parent's too.
        self._left += getattr(self, "by_options", {}).values()
        self.by_options: dict[Hashable, Any] = {}
        # fsspec does not say that its other filesystems may be shared by threads; some must not.
        self.one_at_a_time = threading.Lock()


_filesystems = _Filesystems()


class FsspecFiles(RemoteFiles):
    """Files of one filesystem."""

    def __init__(self, protocol: str, kind: type, options: Mapping[str, Any], instance: Any) -> None:
        self._protocol = protocol
        self._kind: Any = kind
        self._options = dict(options)
        self._instance = instance
        self._identity = (kind, json.dumps(self._options, sort_keys=True, default=repr))
        self.appends = protocol in _APPENDING

    def identity(self) -> Hashable:
        return self._identity

    def store(self) -> str:
        return f"{self._protocol}#{self._identity[1]}"

    def url(self, key: str) -> str:
        return f"{self._protocol}://{key}"

    async def _call(self, name: str, key: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the filesystem, its errors turned into those of this package."""
        try:
            if self._kind.async_impl:
                return await getattr(self._of_this_loop(), f"_{name}")(key, *args, **kwargs)
            return await in_thread(self._call_blocking, name, key, args, kwargs)
        except Exception as error:
            raise remote_error(error, Target(self.url(key), self._protocol)) from error

    def _of_this_loop(self) -> Any:
        filesystem = _filesystems.by_options.get(self._identity)
        if filesystem is None:
            filesystem = _filesystems.by_options[self._identity] = self._kind(
                asynchronous=True,
                loop=asyncio.get_running_loop(),
                skip_instance_cache=True,
                use_listings_cache=False,
                **self._options,
            )
        return filesystem

    def _call_blocking(self, name: str, key: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with _filesystems.one_at_a_time:
            filesystem = self._instance or self._kind(use_listings_cache=False, **self._options)
            return getattr(filesystem, name)(key, *args, **kwargs)

    # ---- files

    async def read(self, key: str, offset: int, length: int | None) -> bytes:
        if length == 0:
            await self._info(key)
            return b""
        end = None if length is None else offset + length
        try:
            data: bytes = await self._call("cat_file", key, start=offset or None, end=end)
        except RunStoreError as error:
            if isinstance(error, FileNotFoundError) or offset < (await self._info(key))["size"]:
                raise
            return b""  # at or past the end, which some filesystems take for an error
        return data

    async def _info(self, key: str) -> dict[str, Any]:
        info: dict[str, Any] = await self._call("info", key)
        if info.get("type") == "directory":
            raise remote_error(IsADirectoryError(21, "Is a directory"), Target(self.url(key), ""))
        return info

    async def stat(self, key: str) -> StorageStat | None:
        try:
            return _stat(await self._info(key))
        except FileNotFoundError:
            return None

    async def write(self, key: str, data: bytes) -> None:
        if self._protocol not in _DISKS:
            await self._call("pipe_file", key, data)
            return
        await self._make_parent(key)
        folder, name = posixpath.split(key)
        temp = f"{folder}/.{name[:100]}.{secrets.token_hex(8)}{_TEMP_SUFFIX}"
        try:
            await self._call("pipe_file", temp, data)
            await self._refuse_folder(key)
            await self._call("mv", temp, key)
        except BaseException:
            with contextlib.suppress(RunStoreError):
                await self._call("rm_file", temp)
            raise

    async def _make_parent(self, key: str) -> None:
        folder = posixpath.dirname(key)
        if folder.strip("/"):
            await self._call("makedirs", folder, exist_ok=True)

    async def _refuse_folder(self, key: str) -> None:
        if await self._call("isdir", key):
            msg = "A folder is in the way: choose another path"
            raise StorageIOError(21, msg, self.url(key))

    async def append(self, key: str, data: bytes, apart: bool) -> None:
        stat = await self.stat(key)
        if stat is None:
            await self._refuse_folder(key)
            await self._make_parent(key)
        if apart and stat is not None and stat.size:
            last = await self.read(key, stat.size - 1, 1)
            data = data if last in {b"", b"\n"} else b"\n" + data
        await in_thread(self._append, key, data)

    def _append(self, key: str, data: bytes) -> None:
        try:
            with _filesystems.one_at_a_time:
                filesystem = self._instance or self._kind(use_listings_cache=False, **self._options)
                with filesystem.open(key, "ab") as file:
                    file.write(data)
        except Exception as error:
            raise remote_error(error, Target(self.url(key), self._protocol)) from error

    async def remove(self, key: str) -> None:
        if await self.stat(key) is not None:
            with contextlib.suppress(FileNotFoundError):
                await self._call("rm_file", key)

    async def remove_dir(self, key: str) -> None:
        if self.appends:
            with contextlib.suppress(RunStoreError):
                await self._call("rmdir", key)

    # ---- folders

    async def scan(self, key: str) -> StorageListing:
        try:
            entries = await self._call("ls", key, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return StorageListing()
        files: dict[str, StorageStat] = {}
        folders: list[str] = []
        for entry in entries:
            path = entry["name"].rstrip("/")
            name = posixpath.basename(path)
            if path.strip("/") == key.strip("/") or name.endswith(_TEMP_SUFFIX):
                continue  # the folder's own entry, or a file itself
            if entry.get("type") == "directory":
                folders.append(name)
            else:
                files[name] = _stat(entry)
        return StorageListing(dict(sorted(files.items())), sorted(folders))

    async def find(self, key: str, starting: str, depth: int | None) -> dict[str, StorageStat] | None:
        if self.appends:
            return None
        try:
            found = await self._call("find", key, detail=True)
        except FileNotFoundError:
            return {}
        pairs = [(path.removeprefix(key).lstrip("/"), _stat(info)) for path, info in found.items()]
        return dict(
            sorted(
                (name, stat)
                for name, stat in pairs
                if name.startswith(starting) and (depth is None or name.count("/") < depth)
            )
        )

    def committer(self, key: str) -> Committer:
        return _WholeRewrite(self, key)


def _stat(info: Mapping[str, Any]) -> StorageStat:
    return StorageStat(
        int(info.get("size") or 0), _seconds(next((info[n] for n in _TIMES if info.get(n)), 0))
    )


def _seconds(time: float | datetime | str) -> float:
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    return time.timestamp() if isinstance(time, datetime) else float(time)


class _WholeRewrite(Committer):
    """Appends segments by writing the whole file anew; right for one writer a file.

    Where a segment would begin is known from before the first attempt, here or in the spool: if its bytes
    are there, it has arrived.
    """

    def __init__(self, files: FsspecFiles, key: str) -> None:
        self._files = files
        self._key = key
        self._start: int | None = None

    def forget(self) -> None:
        self._start = None

    async def learn(self) -> Base:
        stat = await self._files.stat(self._key)
        return Base("", 0 if stat is None else stat.size)

    async def commit(self, segments: Sequence[Segment], spool: Spool) -> Base:
        attempts = Attempts(_BUDGET_SECONDS)
        while True:
            try:
                return await self._commit(segments, spool)
            except RunStoreError as error:
                await attempts.again_after(error)

    async def _commit(self, segments: Sequence[Segment], spool: Spool) -> Base:
        now = await self.learn()
        fresh = await self.without_stale(segments, now, spool)
        content = await self._files.read(self._key, 0, None) if now.size else b""
        first = fresh[0].base if fresh else None
        start = self._start if self._start is not None else first.size if first else now.size
        data = joined(fresh, content[:start][-1:])
        if content[start : start + len(data)] != data:
            self._start = len(content)
            content += joined(fresh, content[-1:])
            await self._files.write(self._key, content)
        self._start = None
        return Base("", len(content))
