"""Appending where a filesystem can only write whole files: right for one writer a file.

Where a segment is going to begin is noted in the spool before each attempt: if its bytes are there, it
has arrived, whatever the filesystem said, and whoever looks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runstore.errors import RunStoreError
from runstore.remote._appended import Committer
from runstore.remote._retry import BUDGET_SECONDS, Attempts
from runstore.remote._segment import Base, Segment, joined
from runstore.remote._spool import Spool
from runstore.storage._bridge import in_thread

if TYPE_CHECKING:
    from runstore.remote._files import RemoteFiles

__all__ = ["WholeRewrite"]


class WholeRewrite(Committer):
    """Appends segments by writing the whole file anew."""

    def __init__(self, files: RemoteFiles, key: str) -> None:
        self._files = files
        self._key = key

    def forget(self) -> None:
        """Nothing is kept between commits."""

    async def learn(self) -> Base:
        stat = await self._files.stat(self._key)
        return Base("", 0 if stat is None else stat.size)

    async def commit(self, segments: Sequence[Segment], spool: Spool) -> Base:
        attempts = Attempts(BUDGET_SECONDS)
        starts = {segment.file.path: [int(start) for start in segment.attempts] for segment in segments}
        while True:
            begin = time.monotonic()
            try:
                base = await self._commit(segments, starts, spool)
            except RunStoreError as error:
                await attempts.again_after(error)
            else:
                self.took = time.monotonic() - begin
                return base

    async def _commit(
        self, segments: Sequence[Segment], starts: Mapping[str, list[int]], spool: Spool
    ) -> Base:
        content = await self._content()
        missing = [
            segment
            for segment in segments
            if not any(_stands(segment, start, content) for start in starts[segment.file.path])
        ]
        fresh = await self.without_stale(missing, Base("", len(content)), spool)
        if not fresh:
            return Base("", len(content))
        for segment in fresh:
            starts[segment.file.path].append(len(content))
            await in_thread(spool.note_attempt, segment, str(len(content)))
            content += joined([segment], content[-1:])
        await self._files.write(self._key, content)
        return Base("", len(content))

    async def _content(self) -> bytes:
        try:
            return await self._files.read(self._key, 0, None)
        except FileNotFoundError:
            return b""


def _stands(segment: Segment, start: int, content: bytes) -> bool:
    """Whether a segment's bytes are where it was going to begin."""
    if start > len(content):
        return False
    data = joined([segment], content[:start][-1:])
    return content[start : start + len(data)] == data
