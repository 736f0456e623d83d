"""What the operations of a storage return."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["OpenFile", "StorageListing", "StorageStat"]


@dataclass(frozen=True)
class StorageStat:
    """Size and age of one file.

    Attributes:
        size: Bytes.
        mtime: Time of the last change, in seconds since the epoch.
    """

    size: int
    mtime: float


@dataclass(frozen=True, slots=True)
class StorageListing:
    """What lies directly in a folder.

    Attributes:
        files: Size and age of each file by its name, in order of names.
        folders: Names of the folders, sorted.
        place: What tells the folder from all others where links may lead to it more than once, else `None`.
        mark: The backend's own, to tell the next time what has stayed the same.
    """

    files: dict[str, StorageStat] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    place: Hashable = field(default=None, compare=False, repr=False)
    mark: Any = field(default=None, compare=False, repr=False)


class OpenFile(Protocol):
    """A file held open by one caller, who reads it from end to end and closes it.

    Attributes:
        in_memory: Whether the last range was had without waiting, as the next one is likely to be.
    """

    in_memory: bool

    async def aread_range(self, offset: int, length: int) -> bytes:
        """Bytes of the file, as from the storage; the file is opened by the first call."""

    async def aclose(self) -> None:
        """Close the file; it may have been closed already, or never opened."""
