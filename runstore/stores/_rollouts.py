"""A bounded cache of rollout files, good while the file is unchanged."""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Any, NamedTuple

from runstore.errors import NotFoundError
from runstore.jsonl._decode import Record
from runstore.storage import Storage, StorageStat
from runstore.storage._bridge import breathe
from runstore.stores._whole_files import parse_file

__all__ = ["RolloutCache"]

# Bytes of the files whose records are kept.
CACHE_BYTES = 256 * 1024 * 1024

# A file that is younger than this may change again and keep its time: the clock of files ticks in
# milliseconds on a disk, and in seconds in a bucket.
SETTLED_SECONDS = 2.0

# Bytes that are hashed before an event loop gets its turn.
HASHED_AT_A_STRETCH = 1024 * 1024


class _Entry(NamedTuple):
    stat: StorageStat
    settled: bool
    size: int
    digest: bytes
    records: list[Record]


class RolloutCache:
    """The records of rollout files by path, the least recently used dropped first.

    An entry holds while the file's size and time are what they were, if the file had been left alone
    for a while when it was read. Else its bytes are read again and compared, which saves the parsing
    only. A copy made by pickle is empty. Every step is one operation on a dict, so that threads may
    share it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_entries": {}}

    async def read(self, storage: Storage, path: str) -> list[Record]:
        """The records of a file, the same list as long as it holds the same bytes; `[]` when missing."""
        stat = await storage.astat(path)
        if stat is None:
            return []
        entry = self._entries.get(path)
        if entry is not None and entry.settled and entry.stat == stat:
            self._keep(path, entry)
            return entry.records
        settled = 0 < stat.mtime < time.time() - SETTLED_SECONDS
        try:
            data = await storage.aread(path)
        except NotFoundError:
            return []
        # Only a file that may change and keep its time is told by its bytes: hashing costs half of parsing.
        digest = b"" if settled else await _digest(data)
        records = self._kept_records(path, digest) if digest else None
        if records is None:
            parsed = await parse_file(data, storage.url(path))
            kept = self._kept_records(path, digest) if digest else None  # by another caller meanwhile
            records = parsed if kept is None else kept
        self._keep(path, _Entry(stat, settled, len(data), digest, records))
        return records

    def forget(self, path: str) -> None:
        """Drop what is kept of a file."""
        self._entries.pop(path, None)

    def _kept_records(self, path: str, digest: bytes) -> list[Record] | None:
        entry = self._entries.get(path)
        return entry.records if entry is not None and entry.digest == digest else None

    def _keep(self, path: str, entry: _Entry) -> None:
        self.forget(path)
        if entry.size > CACHE_BYTES:
            return
        self._entries[path] = entry
        entries = list(self._entries.items())
        excess = sum(kept.size for _, kept in entries) - CACHE_BYTES
        for oldest, kept in entries:
            if excess <= 0:
                break
            self.forget(oldest)
            excess -= kept.size


async def _digest(data: bytes) -> bytes:
    digest, view = blake2b(digest_size=16), memoryview(data)
    for start in range(0, len(data), HASHED_AT_A_STRETCH):
        digest.update(view[start : start + HASHED_AT_A_STRETCH])
        await breathe()
    return digest.digest()
