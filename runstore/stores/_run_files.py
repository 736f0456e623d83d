"""What every part of a run's store needs: where its files are, and how they are read and written."""

from __future__ import annotations

import os

from runstore.errors import NotFoundError
from runstore.jsonl._decode import Record, decode_document
from runstore.storage import Storage, as_storage, storage_join
from runstore.storage._sync_only import SyncMethods
from runstore.stores._whole_files import parse_file

__all__ = ["RunFiles"]


class RunFiles:
    """The files below a run's folder."""

    def __init__(self, storage: Storage | SyncMethods | str | os.PathLike[str], prefix: str = "") -> None:
        self.storage = as_storage(storage)
        self.prefix = prefix

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage!r}, {self.prefix!r})"

    def url(self, path: str = "") -> str:
        """URI of a path in this run."""
        return self.storage.url(self._path(path))

    def _path(self, *parts: str) -> str:
        return storage_join(self.prefix, *parts)

    async def _read_document(self, name: str) -> Record | None:
        try:
            data = await self.storage.aread(self._path(name))
        except NotFoundError:
            return None
        return decode_document(data, self.url(name))

    async def _read_lines(self, name: str) -> list[Record]:
        try:
            data = await self.storage.aread(self._path(name))
        except NotFoundError:
            return []
        return await parse_file(data, self.url(name))
