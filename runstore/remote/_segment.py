"""The format of a spool's files: frames, each with its length and checksum.

A frame is `<kind: u8> <length: u32> <crc32: u32> <bytes>`, little-endian. A write that was cut short
(a full disk, a power cut) leaves a last frame that does not check out; it was never acknowledged.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "UNKNOWN",
    "Attempt",
    "Base",
    "Frame",
    "Sealed",
    "Segment",
    "encode_appends",
    "encode_note",
    "joined",
    "read_segment",
]

_HEADER = struct.Struct("<BII")
_PLAIN, _APART, _NOTE = 0, 1, 2


class Frame(NamedTuple):
    """Bytes of one append."""

    data: bytes
    apart: bool
    """Whether a newline goes before them where the file does not end in one."""


class Base(NamedTuple):
    """The object that appends were made to, as far as their writer knew it."""

    generation: str
    """Changes with every write of the whole object, not with appends; empty where another tool made it."""
    size: int


UNKNOWN = Base("", 0)
"""What every object can have come from."""


class Attempt(NamedTuple):
    """An attempt to commit a segment, noted before anything is sent."""

    mark: str
    """What tells whether it went through: the id of an upload, say."""


class Sealed(NamedTuple):
    """The file of a segment that nothing is added to any more."""

    owner: str
    """The spool it belongs to, a random name."""
    number: int
    """Its place among the segments of that spool, from 1."""
    path: str
    abandoned: bool
    """Whether its owner died, and this process only delivers it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of appends, which reach the object together or not at all.

    Attributes:
        file: Where it lies, and whose it is.
        frames: The appends.
        base: What they were made to, `None` when that was never known.
        attempts: The marks of attempts to commit it.
    """

    file: Sealed
    frames: list[Frame]
    base: Base | None
    attempts: list[str]

    @property
    def size(self) -> int:
        """Bytes appended."""
        return sum(len(frame.data) for frame in self.frames)


def _frame(kind: int, data: bytes) -> bytes:
    return _HEADER.pack(kind, len(data), _checksum(data)) + data


def _checksum(data: bytes) -> int:
    """Begun with anything but 0: zeros, which a power cut can leave at the end of a file, never check out."""
    return zlib.crc32(data, 1)


def encode_appends(appends: Iterable[tuple[bytes, bool]]) -> bytes:
    """The frames of several appends: bytes, and whether they go apart."""
    return b"".join([_frame(_APART if apart else _PLAIN, data) for data, apart in appends])


def encode_note(note: Base | Attempt) -> bytes:
    """The frame of something to remember beside the appends."""
    return _frame(_NOTE, json.dumps(note._asdict()).encode())


def read_segment(file: Sealed, data: bytes) -> Segment:
    """The segment that a file holds, up to the first frame that does not check out."""
    frames: list[Frame] = []
    notes: list[Base | Attempt | None] = []
    offset = 0
    while len(data) - offset >= _HEADER.size:
        kind, length, checksum = _HEADER.unpack_from(data, offset)
        body = data[offset + _HEADER.size : offset + _HEADER.size + length]
        if len(body) < length or _checksum(body) != checksum or kind not in {_PLAIN, _APART, _NOTE}:
            break
        if kind == _NOTE:
            notes.append(_read_note(body))
        else:
            frames.append(Frame(body, kind == _APART))
        offset += _HEADER.size + length
    bases = [note for note in notes if isinstance(note, Base)]
    attempts = [note.mark for note in notes if isinstance(note, Attempt)]
    return Segment(file, frames, bases[-1] if bases else None, attempts)


def _read_note(body: bytes) -> Base | Attempt | None:
    """A note, `None` for one of another version's."""
    try:
        match json.loads(body):
            case {"generation": str(generation), "size": int(size)}:
                return Base(generation, size)
            case {"mark": str(mark)}:
                return Attempt(mark)
    except ValueError:
        pass
    return None


def joined(segments: Sequence[Segment], last: bytes) -> bytes:
    """The bytes that segments add to an object.

    Args:
        segments: In the order in which they were written.
        last: The object's last byte, `b""` when it is empty.
    """
    parts: list[bytes] = []
    for segment in segments:
        for frame in segment.frames:
            if frame.apart and last not in {b"", b"\n"}:
                parts.append(b"\n")
            parts.append(frame.data)
            last = frame.data[-1:] or last
    return b"".join(parts)
