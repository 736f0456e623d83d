"""The one table that turns errors of the operating system into those of this package."""

from __future__ import annotations

import errno

from runstore.errors import AccessDeniedError, NotFoundError, StorageFullError, StorageIOError

__all__ = ["ABSENT", "StorageFailure", "storage_error", "write_error"]

StorageFailure = NotFoundError | AccessDeniedError | StorageFullError | StorageIOError

ABSENT = {errno.ENOENT, errno.ENOTDIR}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def storage_error(error: OSError, path: str) -> StorageFailure:
    """The error of this package for one of the operating system's, naming the path and what to do."""
    code, reason = error.errno or errno.EIO, error.strerror or str(error)
    if code in ABSENT or code == errno.EISDIR or isinstance(error, FileNotFoundError):
        return NotFoundError(code, "There is no file at this path", path)
    if code in _DENIED or isinstance(error, PermissionError):
        return AccessDeniedError(code, f"{reason}: check the owner and mode of the file and its folder", path)
    if code in _FULL:
        return StorageFullError(code, f"{reason}: free some space, then call again", path)
    return StorageIOError(code, reason, path)


def write_error(error: OSError, path: str) -> StorageFailure:
    """The same for an operation that makes the file, so that its absence is no reason to fail."""
    if error.errno == errno.EISDIR:
        return StorageIOError(error.errno, "A folder is in the way: choose another path", path)
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return StorageIOError(error.errno, "A parent of this path is a file: choose another path", path)
    if error.errno == errno.ENOENT:
        return NotFoundError(error.errno, "Its folder is not there and cannot be made: choose another", path)
    return storage_error(error, path)
