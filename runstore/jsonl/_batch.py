"""What a follower hands out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, overload

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that were read together; it iterates, counts and is indexed as they are.

    Attributes:
        records: The records, in file order. Followers share them: treat them as read-only.
        cursor: The position after them, a short printable string that is valid in any process on
            any machine; a follower started from it misses and repeats nothing.
        reset: Whether the file was replaced, so that `records` start it anew.
    """

    records: list[dict[str, Any]]
    cursor: str
    reset: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self.records[index]
