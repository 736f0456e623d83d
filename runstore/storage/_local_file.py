"""A local file held open for who reads it from end to end."""

from __future__ import annotations

import io
import os
from functools import partial

from runstore.storage import _files
from runstore.storage._bridge import in_thread, is_inline
from runstore.storage._patience import finish

__all__ = ["LocalFile"]

_NO_WAITING = getattr(os, "RWF_NOWAIT", None)  # Linux only


class LocalFile:
    """An `OpenFile` of a local disk.

    On an event loop a range that the system has in memory is copied in place, by a read that never waits
    (`preadv2` with `RWF_NOWAIT`; file systems that cannot tell refuse it). A thread reads only what is
    missing, so that a large file costs few hops.
    """

    def __init__(self, path: str) -> None:
        """Open nothing yet.

        Args:
            path: Full path of the file.
        """
        self.in_memory = False
        self._path = path
        self._file: io.FileIO | None = None  # closes itself where an interrupt keeps `aclose` from running
        self._buffer = bytearray()

    async def aread_range(self, offset: int, length: int) -> bytes:
        if is_inline() or self._file is None:
            return await in_thread(self._read, offset, length)
        data = self._read_in_memory(self._file, offset, length)
        self.in_memory = len(data) == length
        if self.in_memory:
            return data
        return data + await in_thread(self._read, offset + len(data), length - len(data))

    async def aclose(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if is_inline():
            file.close()
        else:  # some network file systems wait for their server here; a cancelled caller closes it too
            await finish(partial(in_thread, file.close))

    def _read(self, offset: int, length: int) -> bytes:
        self._file = self._file or _files.open_to_read(self._path)
        return _files.read_open(self._file, offset, length)

    def _read_in_memory(self, file: io.FileIO, offset: int, length: int) -> bytes:
        """What of a range can be had without waiting."""
        if _NO_WAITING is None:
            return b""
        self._buffer = self._buffer or bytearray(length)  # used again: it stays in the processor's cache
        view = memoryview(self._buffer)[:length]
        try:
            got = os.preadv(file.fileno(), [view], offset, _NO_WAITING)
        except OSError:  # not in memory, or the file system cannot tell; what is wrong the thread will say
            return b""
        return bytes(view[:got])
