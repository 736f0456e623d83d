"""Blocking operations on local files: what `LocalStorage` runs in place or in a thread.

Every function takes the full path of a file and raises the errors of `runstore.errors`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Sequence

from runstore.errors import RunStoreError
from runstore.storage._answers import StorageStat
from runstore.storage._append_queue import Append
from runstore.storage._errors import ABSENT, storage_error, write_error
from runstore.storage._listing import is_settled
from runstore.storage._replace import TEMP_SUFFIX, remove_abandoned, replace, write_all

__all__ = ["append", "append_all", "list_dir", "read_range", "remove", "remove_dir", "write"]

# One write never joins more than this much of what many callers append at once.
LARGEST_COMMIT = 4 * 1024 * 1024

# A tail without a newline is looked at again after this many seconds, in case its writer is at work.
TAIL_LOOK_SECONDS = 0.001
TAIL_LOOKS = 200
_HOLDS_SOMETHING = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}


def read_range(path: str, offset: int, length: int | None) -> bytes:
    """Bytes from `offset` on, to the end of the file as it is now when `length` is `None`."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # A seek tells the size at a quarter of what fstat costs; of a folder it tells nonsense.
            size = (
                os.lseek(descriptor, 0, os.SEEK_END) if length is not None else os.fstat(descriptor).st_size
            )
            rest = size - offset
            wanted = rest if length is None or length > rest else length
            if wanted > 0:
                data = os.pread(descriptor, wanted, offset)
                return data if len(data) == wanted else _read_on(descriptor, data, offset, wanted)
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return b""
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.EINVAL and os.path.isdir(path):  # tmpfs refuses to seek in a folder
            raise storage_error(IsADirectoryError(errno.EISDIR, "Is a folder"), path) from error
        raise storage_error(error, path) from error


def open_to_read(path: str) -> io.FileIO:
    """Open a file that is read in many ranges."""
    try:
        return io.FileIO(path)
    except OSError as error:
        raise storage_error(error, path) from error


def read_open(file: io.FileIO, offset: int, length: int) -> bytes:
    """As `read_range`, of a file that is open."""
    try:
        data = os.pread(file.fileno(), length, offset)
        return data if len(data) == length else _read_on(file.fileno(), data, offset, length)
    except OSError as error:
        raise storage_error(error, os.fsdecode(file.name)) from error


def _read_on(descriptor: int, data: bytes, offset: int, wanted: int) -> bytes:
    """The rest of a read that came back short: Linux gives at most 2 GiB at a time."""
    parts, got = [data], len(data)
    while got < wanted and (data := os.pread(descriptor, wanted - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def append(path: str, data: bytes, whole_lines: bool, durable: bool) -> None:
    """One write at the end of the file; `whole_lines` keeps it apart from an unfinished last line."""
    written, error = _append(path, data, whole_lines, durable)
    if error is not None and not _lacks_a_newline_only([Append(data, whole_lines, durable)], written):
        raise write_error(error, path) from error


def append_all(path: str, appends: Sequence[Append]) -> list[RunStoreError | None]:
    """Append several in order, in few writes; each gets its own outcome."""
    outcomes: list[RunStoreError | None] = []
    while len(outcomes) < len(appends):
        run = _next_run(appends, len(outcomes))
        data = run[0].data if len(run) == 1 else b"".join([append.data for append in run])
        durable = any(append.durable for append in run)
        written, error = _append(path, data, run[0].whole_lines, durable)
        if error is None or _lacks_a_newline_only(run, written):
            outcomes += [None] * len(run)
            continue
        failure = write_error(error, path)
        failure.__cause__ = error
        outcomes += _outcomes_of_failure(run, written, failure)
    return outcomes


def _lacks_a_newline_only(run: Sequence[Append], written: int) -> bool:
    """Whether all of a failed write is in the file but its last newline, which the next append adds.

    Its last record counts for every reader, so its writer must not be told to write it again.
    """
    last = run[-1]
    complete = written == sum(len(append.data) for append in run) - 1
    return complete and last.whole_lines and not last.durable and last.data.endswith(b"\n")


def _next_run(appends: Sequence[Append], start: int) -> Sequence[Append]:
    """The appends from `start` on that go into one write."""
    size, end = 0, start
    while (
        end < len(appends)
        and appends[end].whole_lines == appends[start].whole_lines
        and size < LARGEST_COMMIT
    ):
        size += len(appends[end].data)
        end += 1
    return appends[start:end]


def _outcomes_of_failure(
    run: Sequence[Append], written: int, failure: RunStoreError
) -> list[RunStoreError | None]:
    """Those whole in the file succeeded, the next one failed, those after it are still to be tried."""
    outcomes: list[RunStoreError | None] = []
    for append in run:
        written -= len(append.data)
        if written < 0:
            return [*outcomes, failure]
        outcomes.append(None)
    return [failure] * len(run)  # all written, none known to be on the disk: the sync failed


def _append(path: str, data: bytes, whole_lines: bool, durable: bool) -> tuple[int, OSError | None]:
    """How many bytes of `data` were written, and the error that kept the rest from being written."""
    try:
        try:
            descriptor = os.open(path, _TO_APPEND, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = os.open(path, _TO_APPEND, 0o666)
    except OSError as error:
        return 0, error
    written = 0
    try:
        if whole_lines and not _ends_a_line(descriptor) and _tail_stays_open(descriptor):
            written, failure = _append_after_torn_line(descriptor, data)
        else:
            written, failure = os.write(descriptor, data), None
            if written < len(data):
                more, failure = write_all(descriptor, memoryview(data)[written:])
                written += more
        if durable and failure is None:
            os.fsync(descriptor)
    except OSError as error:
        return written, error
    else:
        return written, failure
    finally:
        os.close(descriptor)


_TO_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT


def _ends_a_line(descriptor: int) -> bool:
    size = os.lseek(descriptor, 0, os.SEEK_END)  # a quarter of what fstat costs
    return not size or os.pread(descriptor, 1, size - 1) in _LINE_ENDS


_LINE_ENDS = (b"\n", b"")  # nothing: the file shrank meanwhile


def _tail_stays_open(descriptor: int) -> bool:
    """Whether the last line is unfinished and nobody is writing it: its writer died."""
    size = os.fstat(descriptor).st_size
    for _ in range(TAIL_LOOKS):
        time.sleep(TAIL_LOOK_SECONDS)
        _wait_for_writer(descriptor, size)
        if _ends_a_line(descriptor):
            return False
        size, before = os.fstat(descriptor).st_size, size
        if size == before:
            break
    return True


def _wait_for_writer(descriptor: int, size: int) -> None:
    """Return when a write that was under way is done, however long the system stopped its process.

    Looking for holes takes the lock that a write holds (ext4, btrfs, tmpfs; on xfs reading does). So
    a size that has not grown afterwards was not one in the middle of a write.
    """
    if hasattr(os, "SEEK_HOLE"):
        with contextlib.suppress(OSError):
            os.lseek(descriptor, max(size - 1, 0), os.SEEK_HOLE)


def _append_after_torn_line(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    """Finish the torn last line and append, in one write; of several healers only one adds the newline."""
    with contextlib.suppress(OSError):  # without locks the worst is a blank line
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # released by closing the descriptor
    if not _tail_stays_open(descriptor):
        return write_all(descriptor, data)
    written, error = write_all(descriptor, b"\n" + data)
    return max(written - 1, 0), error


def write(path: str, data: bytes, durable: bool) -> None:
    """Replace the file (of a link: its target) as a whole."""
    try:
        target = os.path.realpath(path) if os.path.islink(path) else path
        try:
            replace(target, data, durable)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            replace(target, data, durable)
    except OSError as error:
        raise write_error(error, path) from error


def stat_file(path: str) -> StorageStat | None:
    """Size and age of a file; `None` for nothing and for a folder."""
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise storage_error(error, path) from error
    return None if stat.S_ISDIR(status.st_mode) else StorageStat(status.st_size, status.st_mtime)


def signature(path: str) -> tuple[int, ...]:
    """What differs after every change of the file; `()` while it cannot be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def settled_signature(path: str) -> tuple[int, ...] | None:
    """As `signature`; `None` just after a change, when another one might not show, and without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    changed = status.st_ctime_ns
    if not is_settled(changed, time.time_ns()):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, changed


def disk_of(path: str) -> int | None:
    """The number of the disk that a folder is on, `None` while it cannot be looked at."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def list_dir(path: str) -> list[str]:
    """Sorted names of the children, temporary files left out."""
    try:
        return sorted(name for name in os.listdir(path) if not name.endswith(TEMP_SUFFIX))
    except OSError as error:
        if error.errno in ABSENT:
            return []
        raise storage_error(error, path) from error


def remove(path: str) -> None:
    """Delete a file; a folder is not one."""
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno in ABSENT or os.path.isdir(path):
            return
        raise storage_error(error, path) from error


def remove_dir(path: str) -> None:
    """Delete an empty folder; one that holds something stays."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno in _HOLDS_SOMETHING:
            if remove_abandoned(path):
                remove_dir(path)
        elif error.errno not in ABSENT:
            raise storage_error(error, path) from error


def make_folder(path: str) -> None:
    """Create a folder and its parents; it may be there already."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise write_error(error, path) from error
