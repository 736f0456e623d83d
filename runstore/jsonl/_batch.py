"""What a follower hands out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that were read together; iterating it iterates them.

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
