"""Storages of the tests' own: what a user's code may hand over."""

import asyncio
import os
import secrets
import time
from pathlib import Path, PurePosixPath

from runstore import NotFoundError, Storage, StorageStat
from runstore.storage._paths import check_file, check_path, check_range


class SyncFolder:
    """An object with sync methods only, as code written for other stores makes them.

    Like theirs, it gives a folder a stat, lists in no order and raises the builtin errors.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def url(self, path: str = "") -> str:
        return (self.root / path).as_uri()

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temp = self.root.parent / secrets.token_hex(8)
        temp.write_bytes(data)
        temp.replace(target)

    def append(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab", buffering=0) as file:
            file.write(data)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def stat(self, path: str) -> StorageStat | None:
        try:
            status = (self.root / path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StorageStat(status.st_size, status.st_mtime)

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)

    def list_dir(self, prefix: str) -> list[str]:
        folder = self.root / prefix
        return [entry.name for entry in os.scandir(folder)][::-1] if folder.is_dir() else []

    def remove(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
        except NotADirectoryError:
            return

    def remove_dir(self, path: str) -> None:
        try:
            (self.root / path).rmdir()
        except OSError:
            return


class MemoryStorage(Storage):
    """Files in the memory of this process, with an async core that really suspends.

    It has the abstract methods only, so that the defaults of the contract are used, and its sync
    twins go through the process's I/O loop. A pickled copy holds the same files.
    """

    spaces: dict[str, dict[str, tuple[bytes, float]]] = {}  # noqa: RUF012  shared by all copies

    def __init__(self, space: str) -> None:
        self.space = space
        self.files = self.spaces.setdefault(space, {})

    def __reduce__(self) -> tuple[type["MemoryStorage"], tuple[str]]:
        return MemoryStorage, (self.space,)

    def url(self, path: str = "") -> str:
        checked = check_path(path)
        return f"memory://{self.space}/{checked}" if checked else f"memory://{self.space}"

    async def aread(self, path: str) -> bytes:
        return await self.aread_range(path, 0)

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        check_range(path, offset, length)
        checked = check_path(path)
        await asyncio.sleep(0)
        if checked not in self.files:
            raise NotFoundError(2, "There is no file at this path", path)
        data = self.files[checked][0]
        return data[offset:] if length is None else data[offset : offset + length]

    async def awrite(self, path: str, data: bytes) -> None:
        checked = check_file(path)
        await asyncio.sleep(0)
        self.files[checked] = (data, time.time())

    async def aappend(self, path: str, data: bytes) -> None:
        checked = check_file(path)
        await asyncio.sleep(0)
        self.files[checked] = (self.files.get(checked, (b"",))[0] + data, time.time())

    async def astat(self, path: str) -> StorageStat | None:
        checked = check_path(path)
        await asyncio.sleep(0)
        found = self.files.get(checked)
        return None if found is None else StorageStat(len(found[0]), found[1])

    async def alist_dir(self, prefix: str) -> list[str]:
        checked = PurePosixPath(check_path(prefix))
        await asyncio.sleep(0)
        paths = [PurePosixPath(path) for path in list(self.files)]
        return sorted({p.relative_to(checked).parts[0] for p in paths if checked in p.parents})

    async def aremove(self, path: str) -> None:
        checked = check_path(path)
        await asyncio.sleep(0)
        self.files.pop(checked, None)

    async def aremove_dir(self, path: str) -> None:
        check_path(path)
        await asyncio.sleep(0)
