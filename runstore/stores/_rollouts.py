"""A bounded cache of rollout files, good while the file is unchanged."""

from __future__ import annotations

from typing import Any, NamedTuple

from runstore.jsonl._decode import Record
from runstore.storage import StorageStat

__all__ = ["RolloutCache"]

# Bytes of the files whose records are kept.
CACHE_BYTES = 256 * 1024 * 1024


class _Entry(NamedTuple):
    stat: StorageStat
    records: list[Record]


class RolloutCache:
    """The records of rollout files by path, the least recently used dropped first.

    A copy made by pickle is empty. Every step is one operation on a dict, so threads may share it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_entries": {}}

    def get(self, path: str, stat: StorageStat) -> list[Record] | None:
        """The records read when the file was as `stat` says, if they are kept."""
        entry = self._entries.pop(path, None)
        if entry is None or entry.stat != stat:
            return None
        self._entries[path] = entry
        return entry.records

    def put(self, path: str, stat: StorageStat, records: list[Record]) -> None:
        """Keep the records of a file; `stat` was taken before it was read."""
        if stat.size > CACHE_BYTES:
            return
        self._entries[path] = _Entry(stat, records)
        entries = list(self._entries.items())
        excess = sum(entry.stat.size for _, entry in entries) - CACHE_BYTES
        for oldest, entry in entries:
            if excess <= 0:
                break
            self.forget(oldest)
            excess -= entry.stat.size

    def forget(self, path: str) -> None:
        """Drop what is kept of a file."""
        self._entries.pop(path, None)
