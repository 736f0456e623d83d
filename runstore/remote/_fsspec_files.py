"""Files of any fsspec filesystem."""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import json
import os
import posixpath
import re
import secrets
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runstore.errors import BucketNotFoundError, NotFoundError, RunStoreError, StorageIOError
from runstore.remote._errors import Target, remote_error
from runstore.remote._files import RemoteFiles, is_wanted
from runstore.remote._fsspec_calls import Filesystem, filesystems
from runstore.remote._fsspec_errors import understood
from runstore.remote._whole_rewrite import WholeRewrite
from runstore.storage._answers import StorageListing, StorageStat
from runstore.storage._errors import write_error

__all__ = ["OBJECT_STORES", "FsspecFiles"]

# Without folders, and with a bucket first, which is never created.
OBJECT_STORES = {"abfs", "abfss", "adl", "az", "gcs", "gs", "oss"}
# With real folders, files that can be appended to, and renames that replace.
_DISKS = {"file", "local", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs"}
_APPENDING = {*_DISKS, "memory"}
_CHANGED = ("mtime", "LastModified", "last_modified", "updated", "modified", "modify")
_TEMP_SUFFIX = ".runstore-temp"
_SECRET = re.compile(r"auth|connection_string|credential|key$|passw|secret|signature|token", re.IGNORECASE)
# Of gcsfs's `token`: where to look for one.
_NO_SECRETS = {"", "anon", "browser", "cache", "cloud", "google_default"}
_SECRET_PARTS = re.compile(r"(AccountKey|SharedAccessSignature)=[^;]*", re.IGNORECASE)


class FsspecFiles(RemoteFiles):
    """Files of one filesystem."""

    def __init__(self, protocol: str, kind: Any, options: Mapping[str, Any], instance: Any) -> None:
        self._protocol = protocol
        self._kind = kind
        self._options = dict(options)
        self._instance = instance
        self._process = os.getpid()
        self._held: Filesystem | None = None
        told = _digest(json.dumps(self._options, sort_keys=True, default=repr))  # credentials may be in them
        # An instance may hold the files itself, as of `memory://`; its token tells it from others.
        self._identity = (kind, told, None if instance is None else instance._fs_token)  # noqa: SLF001  there is no public one
        self._secrets = frozenset(_secrets(self._options))
        self.appends = protocol in _APPENDING and not kind.async_impl
        self._renames = protocol in _DISKS and not kind.async_impl

    def identity(self) -> Hashable:
        return self._identity

    def store(self) -> str:
        told = json.dumps(_told(self._options), sort_keys=True)
        mark = "" if told == "{}" else f"#{_digest(told)}"
        return f"{self._protocol}://{self._host}{mark}"

    @property
    def _host(self) -> str:
        host, port = self._options.get("host", ""), self._options.get("port")
        return f"{host}:{port}" if host and port else str(host)

    def url(self, key: str) -> str:
        if self._protocol in {"file", "local"}:
            return Path(key or "/").as_uri()
        return key if key.startswith(f"{self._protocol}://") else f"{self._protocol}://{self._host}{key}"

    def hold(self, holder: object) -> None:
        self._filesystem.hold(holder)

    async def release(self, holder: object) -> None:
        await self._filesystem.release(holder)

    @property
    def _filesystem(self) -> Filesystem:
        if self._held is None or self._held.process != os.getpid():
            instance = self._instance
            if instance is not None and self._process != os.getpid():
                instance = copy.copy(instance)  # the connections of the other are the parent's
            self._held = filesystems.get(self._identity, self._kind, self._options, instance)
        return self._held

    async def _call(self, name: str, key: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the filesystem, its errors turned into those of this package."""
        try:
            return await self._filesystem.call(name, key, *args, **kwargs)
        except Exception as error:
            raise self._error(error, key) from error

    async def _make(self, key: str, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method that is part of making a file."""
        try:
            await self._filesystem.call(name, *args, **kwargs)
        except Exception as error:
            raise self._making_error(error, key) from error

    def _error(self, error: Exception, key: str) -> RunStoreError:
        where = Target(self.url(key), f"'{self._protocol}://'", self._secrets)
        return remote_error(understood(error), where)

    def _making_error(self, error: Exception, key: str) -> RunStoreError:
        if isinstance(error, OSError) and error.errno in {errno.EISDIR, errno.ENOTDIR, errno.EEXIST}:
            return write_error(error, self.url(key))
        return self._error(error, key)

    # ---- files

    async def read(self, key: str, offset: int, length: int | None) -> bytes:
        if length == 0:
            await self._info(key)
            return b""
        end = None if length is None else offset + length
        try:
            data: bytes = await self._call("cat_file", key, start=offset or None, end=end)
        except StorageIOError:
            stat = await self.stat(key)
            if stat is None or offset < stat.size:
                raise
            return b""  # at or past the end, which some filesystems take for an error
        return data

    async def _info(self, key: str) -> dict[str, Any]:
        info: dict[str, Any] = await self._call("info", key)
        if info.get("type") == "directory":
            raise remote_error(IsADirectoryError(errno.EISDIR, "Is a directory"), Target(self.url(key), ""))
        return info

    async def stat(self, key: str) -> StorageStat | None:
        try:
            (stat,) = await self._stats([await self._info(key)])
        except FileNotFoundError:
            return None
        return stat

    async def _stats(self, infos: list[dict[str, Any]]) -> list[StorageStat]:
        """Sizes and ages of files, by what is known of them."""
        undated = {info["name"] for info in infos if not any(info.get(name) for name in _CHANGED)}
        changed: dict[str, Any] = {}
        if undated and not self._kind.async_impl:
            changed = await self._filesystem.run(lambda filesystem: _changes(filesystem, undated))
        return [
            StorageStat(int(info.get("size") or 0), _changed(info, changed.get(info["name"])))
            for info in infos
        ]

    async def write(self, key: str, data: bytes) -> None:
        if self._renames:
            await self._write_and_rename(key, data)
            return
        try:
            await self._make(key, "pipe_file", key, data)
        except NotFoundError as error:
            if self._protocol in OBJECT_STORES:
                msg = "The bucket or container does not exist, and none is created: check its name"
                raise BucketNotFoundError(errno.ENXIO, msg, self.url(key)) from error
            await self._make_parent(key)
            await self._make(key, "pipe_file", key, data)

    async def _write_and_rename(self, key: str, data: bytes) -> None:
        await self._make_parent(key)
        temp = f"{posixpath.dirname(key)}/.{secrets.token_hex(8)}{_TEMP_SUFFIX}"
        try:
            await self._make(key, "pipe_file", temp, data)
            await self._refuse_folder(key)
            await self._make(key, "mv", temp, key)
        except BaseException:
            with contextlib.suppress(RunStoreError):
                await self._call("rm_file", temp)
            raise

    async def _refuse_folder(self, key: str) -> None:
        if await self._call("isdir", key):
            raise self._making_error(IsADirectoryError(errno.EISDIR, "Is a directory"), key)

    async def _make_parent(self, key: str) -> None:
        folder = posixpath.dirname(key)
        if folder.strip("/"):
            await self._make(key, "makedirs", folder, exist_ok=True)

    async def append(self, key: str, data: bytes, apart: bool) -> None:
        if self._renames:
            await self._make_parent(key)
        try:
            await self._filesystem.run(lambda filesystem: _append(filesystem, key, data, apart))
        except Exception as error:
            raise self._making_error(error, key) from error

    async def remove(self, key: str) -> None:
        if await self.stat(key) is not None:
            with contextlib.suppress(FileNotFoundError):
                await self._call("rm_file", key)

    async def remove_dir(self, key: str) -> None:
        if self._protocol not in OBJECT_STORES:
            with contextlib.suppress(RunStoreError):
                await self._call("rmdir", key)

    # ---- folders

    async def scan(self, key: str) -> StorageListing:
        try:
            entries = await self._call("ls", key, detail=True)
        except FileNotFoundError:
            return StorageListing()
        found = {posixpath.basename(entry["name"].rstrip("/")): entry for entry in entries}
        files: dict[str, dict[str, Any]] = {}
        folders: list[str] = []
        for name, entry in found.items():
            if not name or name.endswith(_TEMP_SUFFIX) or entry["name"].strip("/") == key.strip("/"):
                continue  # the folder's own entry, or a file itself
            kind, info = await self._kind_of(entry)
            if kind == "directory":
                folders.append(name)
            elif info is not None:
                files[name] = info
        stats = await self._stats([files[name] for name in sorted(files)])
        return StorageListing(dict(zip(sorted(files), stats, strict=True)), sorted(folders))

    async def _kind_of(self, entry: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """What an entry of a listing is; a link is what it leads to."""
        kind = entry.get("type", "file")
        if kind in {"file", "directory"}:
            return kind, entry
        try:
            info = await self._call("info", entry["name"])
        except FileNotFoundError:
            return "other", None
        return info["type"], info

    async def find(self, key: str, starting: str, depth: int | None) -> dict[str, StorageStat] | None:
        if self._protocol not in OBJECT_STORES:
            return None
        try:
            found = await self._call("find", key, detail=True)
        except FileNotFoundError:
            return {}
        if not isinstance(found, Mapping):  # what adlfs says of a file
            return {}
        named = {path.removeprefix(key).lstrip("/"): info for path, info in found.items()}
        names = sorted(name for name in named if is_wanted(name, starting, depth))
        return dict(zip(names, await self._stats([named[name] for name in names]), strict=True))

    def committer(self, key: str) -> WholeRewrite:
        return WholeRewrite(self, key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _append(filesystem: Any, key: str, data: bytes, apart: bool) -> None:
    try:
        info = filesystem.info(key)
    except FileNotFoundError:
        info = {"size": 0}
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, "Is a directory", key)
    if apart and info["size"] and filesystem.cat_file(key, info["size"] - 1, info["size"]) != b"\n":
        data = b"\n" + data
    with filesystem.open(key, "ab") as file:
        file.write(data)


def _changes(filesystem: Any, names: set[str]) -> dict[str, Any]:
    """When files have changed, where the filesystem tells that only one by one, if at all."""
    changes: dict[str, Any] = {}
    for name in names:
        with contextlib.suppress(NotImplementedError, OSError):
            changes[name] = filesystem.modified(name)
    return changes


def _changed(info: Mapping[str, Any], otherwise: Any) -> float:
    times = [info.get(name) for name in _CHANGED]
    return next((_seconds(time) for time in [*times, otherwise, info.get("created")] if time), 0.0)


def _seconds(time: float | datetime | str) -> float:
    """Seconds since the epoch; a time without a zone is one of UTC."""
    if isinstance(time, int | float):
        return float(time)
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(f"{time[:8]}T{time[8:14]}" if time[:14].isdigit() else time)
        except ValueError:
            return 0.0
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _secrets(options: Mapping[str, Any]) -> set[str]:
    """Texts in options that nobody may see."""
    found: set[str] = set()
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _secrets(value)
        elif isinstance(value, str) and value and _SECRET.search(name):
            found.add(value)
            found |= {part.partition("=")[2] for part in value.split(";") if _SECRET_PARTS.fullmatch(part)}
    return found - _NO_SECRETS


def _told(options: Mapping[str, Any]) -> dict[str, Any]:
    """What options say of the place, in a form that is the same in other processes, without secrets."""
    told: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            told[name] = _told(value)
        elif name == "connection_string":
            told[name] = _SECRET_PARTS.sub("", str(value))
        elif not _SECRET.search(name):
            plain = isinstance(value, str | int | float | bool | None)
            told[name] = value if plain else type(value).__qualname__
    return told
