"""What a remote storage asks of its filesystem: files at full keys. Every coroutine runs on the I/O loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from runstore.remote._appended import Committer
from runstore.storage._answers import StorageListing, StorageStat

__all__ = ["RemoteFiles", "is_wanted"]


def is_wanted(path: str, starting: str, depth: int | None) -> bool:
    """Whether `afind` looks for what is at a relative path of a flat listing; a folder's own entry is not."""
    named = bool(path) and not path.endswith("/")
    return named and path.startswith(starting) and (depth is None or path.count("/") < depth)


class RemoteFiles(ABC):
    """Files of one filesystem, by keys that its root is part of.

    Attributes:
        appends: Whether the filesystem itself can append; else appends are spooled.
    """

    appends: bool = False

    @abstractmethod
    def url(self, key: str) -> str:
        """URI of a key."""

    @abstractmethod
    def identity(self) -> Hashable:
        """What tells this filesystem, with its options, from others."""

    @abstractmethod
    def store(self) -> str:
        """A name for the filesystem that holds in other processes too. Blocks."""

    @abstractmethod
    async def read(self, key: str, offset: int, length: int | None) -> bytes:
        """Bytes of a file; `b""` at or past its end."""

    @abstractmethod
    async def write(self, key: str, data: bytes) -> None:
        """Replace a file."""

    async def append(self, key: str, data: bytes, apart: bool) -> None:
        """Append to a file, where `appends` says so."""
        raise NotImplementedError

    @abstractmethod
    async def stat(self, key: str) -> StorageStat | None:
        """Size and age of a file, `None` when there is none."""

    @abstractmethod
    async def scan(self, key: str) -> StorageListing:
        """What lies directly in a folder."""

    @abstractmethod
    async def find(self, key: str, starting: str, depth: int | None) -> dict[str, StorageStat] | None:
        """Every file below a folder, by relative path, or `None` where going folder by folder is as good."""

    @abstractmethod
    async def remove(self, key: str) -> None:
        """Delete a file; no error when it is missing."""

    async def remove_dir(self, key: str) -> None:  # noqa: B027  right where folders are parts of keys
        """Delete an empty folder; nothing to do where folders are only parts of keys."""

    @abstractmethod
    def committer(self, key: str) -> Committer:
        """How spooled appends get into a file."""

    def hold(self, holder: object) -> None:  # noqa: B027  right where there are no connections
        """Keep connections open for a storage."""

    async def release(self, holder: object) -> None:  # noqa: B027  the same
        """Close connections that no other storage holds."""
