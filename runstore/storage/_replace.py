"""Replacing a whole file atomically, and clearing away what killed writers leave behind.

The new content goes to a file of the same folder that takes the old one's place once it is complete.
Where the system can (Linux), that file has no name until then, so a killed writer leaves nothing;
between the two steps, and elsewhere, it has a temporary name and is locked by its writer. One that is
not locked was left by a killed writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets

from runstore.storage._descriptors import open_into

__all__ = ["TEMP_SUFFIX", "remove_abandoned", "replace", "write_all", "write_or_raise"]

TEMP_SUFFIX = ".runstore-tmp"

# Folders that this process has looked through for abandoned files, so that it does so once.
_cleared: set[str] = set()
MOST_CLEARED = 10_000


def replace(target: str, data: bytes, durable: bool) -> None:
    """Replace a file, or make it.

    Args:
        target: Full path; not a link.
        data: The new content.
        durable: Sync the file and its folder to the disk.

    Raises:
        FileNotFoundError: Its folder is not there.
        OSError: It could not be written; what was there before is still there.
    """
    folder = os.path.dirname(target)
    _clear_once(folder)
    temp = os.path.join(folder, f".{secrets.token_hex(8)}{TEMP_SUFFIX}")
    held: list[int] = []
    try:
        named = _open(held, folder, temp)
        _fill(held[0], data, durable)
        if named or not _link(held[0], target, temp):
            os.replace(temp, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    finally:
        for descriptor in held:
            os.close(descriptor)
    if durable:
        _sync_folder(folder)


def _open(held: list[int], folder: str, temp: str) -> bool:
    """Open a new file and lock it; whether it has a name."""
    named = not _open_unnamed(held, folder)
    if named:
        open_into(held, temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with contextlib.suppress(OSError):  # without locks, nobody takes the file for an abandoned one
        fcntl.flock(held[0], fcntl.LOCK_EX)
    return named


def _open_unnamed(held: list[int], folder: str) -> bool:
    """Open a file without a name, which a killed writer cannot leave behind; whether there are such."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return False
    try:
        open_into(held, folder, os.O_TMPFILE | os.O_WRONLY)
    except FileNotFoundError:
        raise
    except OSError:
        return False  # not on this filesystem; a real fault shows again with the named file
    return True


def _fill(descriptor: int, data: bytes, durable: bool) -> None:
    write_or_raise(descriptor, data)
    if durable:
        os.fsync(descriptor)
    # Network filesystems tell of a full disk only when a descriptor is closed.
    for copy in map(os.dup, (descriptor,)):  # a loop, so that an interrupt finds no step between these
        os.close(copy)


def _link(descriptor: int, target: str, temp: str) -> bool:
    """Name a file that has no name: `target` if that is free (then it is done), else `temp`."""
    # With a folder descriptor given, Python calls linkat, which can follow the link in /proc.
    source = f"/proc/self/fd/{descriptor}"
    try:
        os.link(source, target, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        os.link(source, temp, src_dir_fd=descriptor, follow_symlinks=True)
        return False
    return True


def write_all(descriptor: int, data: bytes | memoryview) -> tuple[int, OSError | None]:
    """Write to a descriptor: how many bytes, and the error that kept the rest from being written."""
    written = 0
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])
    except OSError as error:
        return written, error
    return written, None


def write_or_raise(descriptor: int, data: bytes) -> None:
    """Write all of it; a part may be written when this raises."""
    _, error = write_all(descriptor, data)
    if error is not None:
        raise error


def _sync_folder(folder: str) -> None:
    held: list[int] = []
    try:
        open_into(held, folder, os.O_RDONLY)
        os.fsync(held[0])
    finally:
        for descriptor in held:
            os.close(descriptor)


def _clear_once(folder: str) -> None:
    if folder in _cleared:
        return
    if len(_cleared) >= MOST_CLEARED:
        _cleared.clear()
    _cleared.add(folder)
    remove_abandoned(folder)


def remove_abandoned(folder: str) -> bool:
    """Remove the temporary files of killed writers; whether there were any."""
    removed = False
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(TEMP_SUFFIX):
                removed |= _remove_unlocked(os.path.join(folder, name))
    return removed


def _remove_unlocked(path: str) -> bool:
    held: list[int] = []
    try:
        open_into(held, path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:  # its writer lives, or another process cleared it away
        return False
    finally:
        for descriptor in held:
            os.close(descriptor)
    return True
