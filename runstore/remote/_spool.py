"""Appends that have not reached the bucket yet, in files on the local disk.

A spool belongs to one process and one object. It is a lock file, which its owner holds locked while
anything is pending, and segments: appends go to the open one, and a commit takes the sealed ones. The
name of a segment, its owner and number, is also what the object's metadata says when it has arrived; so
what a dead owner left can be told from what had arrived, by any process that finds the lock free.

    <spool folder>/<store>/<object>/<owner>.lock          who and what, as JSON; no credentials
    <spool folder>/<store>/<object>/<owner>.000001.segment
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from runstore.errors import RunStoreError, SpoolKeptWarning
from runstore.remote._errors import warn
from runstore.remote._owners import VARIABLE, Lock, Place, abandoned_locks, new_lock
from runstore.remote._segment import (
    UNKNOWN,
    Attempt,
    Base,
    Sealed,
    Segment,
    encode_appends,
    encode_note,
    joined,
    read_segment,
)
from runstore.storage._append_queue import Append
from runstore.storage._bridge import no_fork
from runstore.storage._errors import write_error
from runstore.storage._replace import write_or_raise

__all__ = ["Spool"]

# A commit takes so much at a time; what waited longer for its server takes several.
SEGMENT_SIZE = 32 * 1024 * 1024


class Spool:
    """The pending appends of this process to one object, and those of dead ones that it took over.

    Thread-safe. Every method blocks on the local disk and raises the errors of `runstore.errors`.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lock = threading.Lock()
        # One name for the process's life: the object's metadata has room for the marks of 64.
        self._owner = secrets.token_urlsafe(8)
        self._own: Lock | None = None  # held while something is pending
        self._open = -1
        self._open_size = 0
        self._number = 0
        self._sealed: list[Sealed] = []  # of this owner
        self._taken_over: list[Lock] = []
        self._base: Base | None = None

    @property
    def pending(self) -> bool:
        """Whether anything waits to be committed."""
        return self._open >= 0 or bool(self._sealed) or bool(self._taken_over)

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Errors of the local disk, as those of this package that name the folder."""
        try:
            yield
        except OSError as error:
            if isinstance(error, RunStoreError):
                raise
            raise _spool_error(error, self.place) from error

    def append_all(self, appends: Sequence[Append]) -> list[RunStoreError | None]:
        """Append several in order, all or none."""
        data = encode_appends([(append.data, append.whole_lines) for append in appends])
        try:
            with self._lock:
                self._write(data)
        except OSError as error:
            failure = _spool_error(error, self.place)
            failure.__cause__ = error
            return [failure] * len(appends)
        return [None] * len(appends)

    def _write(self, data: bytes) -> None:
        if self._open_size > SEGMENT_SIZE:
            self._seal()
        if self._open < 0:
            self._begin()
        try:
            _write_whole(self._open, data, self._open_size)
        except OSError:
            if not self._open_size:
                self._discard()
            raise
        self._open_size += len(data)

    def _begin(self) -> None:
        with no_fork():
            if self._own is None or not os.fstat(self._own.descriptor).st_nlink:
                self._lock_own()
            self._number += 1  # before: an interrupt after the file is made must not meet it again
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._open = os.open(self._segment_path(self._number), flags, 0o600)
        if self._base is not None:
            self._write_note(self._base)

    def _lock_own(self) -> None:
        """Make the lock file: for the first pending append, or when somebody removed it."""
        if self._own is not None:
            os.close(self._own.descriptor)
            self._own = None
        self._own = new_lock(self.place, self._owner)

    def _release_own(self) -> None:
        """Remove the lock file, and with it two of few descriptors, when nothing is pending."""
        if self._own is not None and self._open < 0 and not self._sealed:
            own, self._own = self._own, None
            own.release()

    def _segment_path(self, number: int) -> str:
        return str(self.place.folder / f"{self._owner}.{number:06d}.segment")

    def _discard(self) -> None:
        """Drop an open segment that nothing could be written to."""
        os.close(self._open)
        self._open, self._open_size = -1, 0
        os.unlink(self._segment_path(self._number))
        self._release_own()

    def _write_note(self, note: Base | Attempt) -> None:
        data = encode_note(note)
        _write_whole(self._open, data, self._open_size)
        self._open_size += len(data)

    def remember(self, base: Base | None) -> None:
        """Note what the appends from here on are made to, `None` when that is not known."""
        with self._lock:
            known, self._base = self._base, base
            if self._open >= 0 and known != base:
                with contextlib.suppress(OSError):  # a full disk: this one goes without
                    self._write_note(base or UNKNOWN)

    def note_attempt(self, segment: Segment, mark: str) -> None:
        """Note an attempt to commit a segment, before anything is sent."""
        with contextlib.suppress(OSError), open(segment.file.path, "ab", buffering=0) as file:
            file.write(encode_note(Attempt(mark)))

    def _seal(self) -> None:
        if self._open < 0:
            return
        file = Sealed(self._owner, self._number, self._segment_path(self._number), abandoned=False)
        if not os.fstat(self._open).st_nlink:  # somebody cleared the folder
            self.place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            Path(file.path).write_bytes(os.pread(self._open, self._open_size, 0))
        os.close(self._open)
        self._sealed.append(file)
        self._open, self._open_size = -1, 0

    def take_over(self) -> None:
        """Take what dead owners left for this object; it goes before this process's own appends."""
        with self._own_errors(), self._lock, no_fork():
            self._taken_over += abandoned_locks(self.place)

    def seal(self) -> list[Sealed]:
        """Everything pending, oldest first; later appends go to a new segment."""
        with self._own_errors(), self._lock:
            self._seal()
            left: list[Sealed] = []
            for lock in list(self._taken_over):
                segments = _segments_of(lock)
                left += segments
                if not segments:
                    self._taken_over.remove(lock)
                    lock.release()
            return left + self._sealed

    def load(self, sealed: Sequence[Sealed]) -> list[Segment]:
        """The first segments of a list, as many as one commit takes; none when the first one is gone."""
        segments: list[Segment] = []
        size = 0
        with self._own_errors():
            for file in sealed:
                if size > SEGMENT_SIZE:
                    break
                try:
                    segments.append(read_segment(file, Path(file.path).read_bytes()))
                except FileNotFoundError:
                    if not segments:
                        self._give_up(file)
                    break
                size += segments[-1].size
        return segments

    def _give_up(self, file: Sealed) -> None:
        with self._lock:
            self._forget(file)
        warn(
            f"{file.path} was removed before it was delivered: its appends to {self.place.key} are lost",
            SpoolKeptWarning,
        )

    def drop(self, segments: Iterable[Segment]) -> None:
        """Forget segments that have arrived."""
        with self._own_errors(), self._lock:
            for segment in segments:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(segment.file.path)
                self._forget(segment.file)
            self._release_own()

    def set_aside(self, segment: Segment) -> Path:
        """Keep the bytes of a segment that must not be appended any more, in a file for people.

        Returns:
            The file.
        """
        kept = Path(segment.file.path.removesuffix(".segment") + ".stale")
        with self._own_errors():
            kept.write_bytes(joined([segment], b""))
        self.drop([segment])
        return kept

    def leave(self) -> None:
        """Leave what dead owners left where it is, for a process that can deliver it, this one too."""
        with self._lock:
            for lock in self._taken_over:
                os.close(lock.descriptor)
            self._taken_over = []

    def _forget(self, file: Sealed) -> None:
        self._sealed = [sealed for sealed in self._sealed if sealed != file]
        for lock in [lock for lock in self._taken_over if lock.owner == file.owner]:
            if not _segments_of(lock):
                self._taken_over.remove(lock)
                lock.release()

    def close(self) -> None:
        """Leave no trace when nothing is pending; a later append begins anew."""
        with self._lock:
            if not self.pending:
                self._release_own()
                with contextlib.suppress(OSError):
                    self.place.folder.rmdir()

    def abandon(self) -> None:
        """Let go of everything in a forked child, so that the parent's lock is the parent's alone."""
        for descriptor in (self._open, *[lock.descriptor for lock in (self._own, *self._taken_over) if lock]):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def _write_whole(descriptor: int, data: bytes, size: int) -> None:
    """Write all of it after `size` bytes, or nothing and raise."""
    try:
        write_or_raise(descriptor, data)
    except BaseException:
        os.ftruncate(descriptor, size)
        raise


def _segments_of(lock: Lock) -> list[Sealed]:
    folder, stem = os.path.split(lock.path.removesuffix(".lock"))
    found = []
    for name in os.listdir(folder):
        number = name.removeprefix(f"{stem}.").removesuffix(".segment")
        if name == f"{stem}.{number}.segment" and number.isdecimal() and os.path.isfile(f"{folder}/{name}"):
            found.append(Sealed(lock.owner, int(number), os.path.join(folder, name), abandoned=True))
    return sorted(found, key=lambda sealed: sealed.number)


def _spool_error(error: OSError, place: Place) -> RunStoreError:
    failure = write_error(error, str(place.folder))
    number, reason, folder = failure.errno, failure.strerror, failure.filename
    hint = f"the spool of appends to {place.key} needs this folder ({VARIABLE} names another)"
    return type(failure)(number, f"{reason}; {hint}", folder)
