"""Blocking operations on local files: what `LocalStorage` runs in place or in a thread.

Every function takes the full path of a file and raises the errors of `runstore.errors`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Sequence

from runstore.errors import AccessDeniedError, NotFoundError, RunStoreError, StorageFullError, StorageIOError
from runstore.storage._base import StorageEntry, StorageStat

__all__ = ["append", "append_all", "find", "list_dir", "read_range", "remove", "remove_dir", "scan", "write"]

TEMP_SUFFIX = ".runstore-tmp"

# One write never joins more than this much of what many callers append at once.
LARGEST_COMMIT = 4 * 1024 * 1024

# A tail without a newline is looked at again after this many seconds, in case its writer is at work.
TAIL_LOOK_SECONDS = 0.001
TAIL_LOOKS = 200

_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def storage_error(error: OSError, path: str) -> RunStoreError:
    """The error of this package for one of the operating system's, naming the path and what to do."""
    code, reason = error.errno or errno.EIO, error.strerror or str(error)
    if code in _ABSENT or code == errno.EISDIR:
        return NotFoundError(code, "There is no file at this path", path)
    if code in _DENIED:
        return AccessDeniedError(code, f"{reason}: check the owner and mode of the file and its folder", path)
    if code in _FULL:
        return StorageFullError(code, f"{reason}: free some space, then call again", path)
    return StorageIOError(code, reason, path)


def _write_error(error: OSError, path: str) -> RunStoreError:
    if error.errno == errno.EISDIR:
        return StorageIOError(error.errno, "A folder is in the way: choose another path", path)
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return StorageIOError(error.errno, "A parent of this path is a file: choose another path", path)
    return storage_error(error, path)


def read_range(path: str, offset: int, length: int | None) -> bytes:
    """Bytes from `offset` on, to the end of the file as it is now when `length` is `None`."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            rest = status.st_size - offset
            wanted = rest if length is None or length > rest else length
            if wanted > 0:
                data = os.pread(descriptor, wanted, offset)
                return data if len(data) == wanted else _read_on(descriptor, data, offset, wanted)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(error, path) from error


def _read_on(descriptor: int, data: bytes, offset: int, wanted: int) -> bytes:
    """The rest of a read that came back short: Linux gives at most 2 GiB at a time."""
    parts, got = [data], len(data)
    while got < wanted and (data := os.pread(descriptor, wanted - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def append(path: str, data: bytes, whole_lines: bool, durable: bool) -> None:
    """One write at the end of the file; `whole_lines` keeps it apart from an unfinished last line."""
    _, error = _append(path, data, whole_lines, durable)
    if error is not None:
        raise _write_error(error, path) from error


def append_all(path: str, items: Sequence[tuple[bytes, bool]], durable: bool) -> list[RunStoreError | None]:
    """Append several (data, whole_lines) in order, in few writes; each gets its own outcome."""
    outcomes: list[RunStoreError | None] = []
    while len(outcomes) < len(items):
        run = _next_run(items, len(outcomes))
        written, error = _append(path, b"".join(data for data, _ in run), run[0][1], durable)
        if error is None:
            outcomes += [None] * len(run)
            continue
        failure = _write_error(error, path)
        failure.__cause__ = error
        outcomes += _outcomes_of_failure(run, written, failure)
    return outcomes


def _next_run(items: Sequence[tuple[bytes, bool]], start: int) -> Sequence[tuple[bytes, bool]]:
    """The items from `start` on that go into one write."""
    size, end = 0, start
    while end < len(items) and items[end][1] == items[start][1] and size < LARGEST_COMMIT:
        size += len(items[end][0])
        end += 1
    return items[start:end]


def _outcomes_of_failure(
    run: Sequence[tuple[bytes, bool]], written: int, failure: RunStoreError
) -> list[RunStoreError | None]:
    """Items whole in the file succeeded, the next one failed, those after it are still to be tried."""
    outcomes: list[RunStoreError | None] = []
    for data, _ in run:
        written -= len(data)
        if written < 0:
            return [*outcomes, failure]
        outcomes.append(None)
    return [failure] * len(run)  # all written, none known to be on the disk: the sync failed


def _append(path: str, data: bytes, whole_lines: bool, durable: bool) -> tuple[int, OSError | None]:
    """How many bytes of `data` were written, and the error that kept the rest from being written."""
    try:
        descriptor = _open_to_append(path)
    except OSError as error:
        return 0, error
    written = 0
    try:
        if whole_lines and not _ends_a_line(descriptor) and _tail_stays_open(descriptor):
            written, failure = _append_after_newline(descriptor, data)
        else:
            written, failure = _write_all(descriptor, data)
        if durable and failure is None:
            os.fsync(descriptor)
    except OSError as error:
        return written, error
    else:
        return written, failure
    finally:
        os.close(descriptor)


def _open_to_append(path: str) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def _write_all(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    written = 0
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])
    except OSError as error:
        return written, error
    return written, None


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) in {b"\n", b""}


def _tail_stays_open(descriptor: int) -> bool:
    """Whether the last line is unfinished and nobody is writing it: its writer died."""
    size = os.fstat(descriptor).st_size
    for _ in range(TAIL_LOOKS):
        time.sleep(TAIL_LOOK_SECONDS)
        if _ends_a_line(descriptor):
            return False
        size, before = os.fstat(descriptor).st_size, size
        if size == before:
            break
    return True


def _append_after_newline(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    """Finish the torn last line and append, in one write; of several healers only one adds the newline."""
    with contextlib.suppress(OSError):  # without locks the worst is a blank line
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # released by closing the descriptor
    if _ends_a_line(descriptor):
        return _write_all(descriptor, data)
    written, error = _write_all(descriptor, b"\n" + data)
    return max(written - 1, 0), error


def write(path: str, data: bytes, durable: bool) -> None:
    """Replace the file (of a link: its target) by a temporary one of the same folder."""
    try:
        target = os.path.realpath(path) if os.path.islink(path) else path
        try:
            _replace(target, data, durable)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _replace(target, data, durable)
    except OSError as error:
        raise _write_error(error, path) from error


def _replace(target: str, data: bytes, durable: bool) -> None:
    folder = os.path.dirname(target)
    temp = os.path.join(folder, f".{secrets.token_hex(8)}{TEMP_SUFFIX}")
    named = False
    descriptor = _open_unnamed(folder)
    if descriptor is None:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        named = True
    try:
        try:
            _, error = _write_all(descriptor, data)
            if error is not None:
                raise error
            if durable:
                os.fsync(descriptor)
            if not named:
                os.link(f"/proc/self/fd/{descriptor}", temp, src_dir_fd=descriptor, follow_symlinks=True)
                named = True
        finally:
            os.close(descriptor)
        os.replace(temp, target)
    except BaseException:
        if named:
            with contextlib.suppress(OSError):
                os.unlink(temp)
        raise
    if durable:
        _sync_folder(folder)


def _open_unnamed(folder: str) -> int | None:
    """A file without a name, which a killed writer cannot leave behind; `None` where there is none."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except FileNotFoundError:
        raise
    except OSError:
        return None  # not on this filesystem; a real fault shows again with the named file


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stat_file(path: str) -> StorageStat | None:
    """Size and age of a file; `None` for nothing and for a folder."""
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in _ABSENT:
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
        if error.errno in _ABSENT:
            return []
        raise storage_error(error, path) from error


def scan(path: str) -> list[StorageEntry]:
    """The children with kind, size and age, sorted by name; dangling links are left out."""
    try:
        with os.scandir(path) as children:
            entries = [entry for child in children if (entry := _entry(child, child.name)) is not None]
    except OSError as error:
        if error.errno in _ABSENT:
            return []
        raise storage_error(error, path) from error
    return sorted(entries, key=lambda entry: entry.path)


def _entry(child: os.DirEntry[str], path: str) -> StorageEntry | None:
    if child.name.endswith(TEMP_SUFFIX):
        return None
    if child.is_dir():
        return StorageEntry(path, None)
    try:
        status = child.stat()
    except OSError as error:
        if error.errno in _ABSENT or error.errno == errno.ELOOP:
            return None
        raise
    return StorageEntry(path, StorageStat(status.st_size, status.st_mtime))


def find(root: str, starting: str) -> list[StorageEntry]:
    """Every file below `root` whose relative path starts so; a folder linked into itself ends the descent."""
    found: list[StorageEntry] = []
    folders = [("", frozenset[tuple[int, int]]())]
    while folders:
        folder, above = folders.pop()
        full = os.path.join(root, folder) if folder else root
        try:
            status = os.stat(full)
        except OSError as error:
            if error.errno in _ABSENT:
                continue
            raise storage_error(error, full) from error
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        for entry in scan(full):
            path = f"{folder}/{entry.path}" if folder else entry.path
            if entry.stat is None and (path + "/").startswith(starting[: len(path) + 1]):
                folders.append((path, above | {here}))
            elif entry.stat is not None and path.startswith(starting):
                found.append(StorageEntry(path, entry.stat))
    return sorted(found, key=lambda entry: entry.path)


def remove(path: str) -> None:
    """Delete a file; a folder is not one."""
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno in _ABSENT or os.path.isdir(path):
            return
        raise storage_error(error, path) from error


def remove_dir(path: str) -> None:
    """Delete an empty folder; one that holds something stays."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno in _ABSENT or error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}:
            return
        raise storage_error(error, path) from error


def make_folder(path: str) -> None:
    """Create a folder and its parents; it may be there already."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise _write_error(error, path) from error
