"""What local folders hold, with size and age: looked at once, and less closely the next time."""

from __future__ import annotations

import errno
import operator
import os
import time
from typing import NamedTuple

from runstore.errors import AccessDeniedError
from runstore.storage._answers import StorageListing, StorageStat
from runstore.storage._base import may_hold
from runstore.storage._descriptors import open_into
from runstore.storage._errors import ABSENT, storage_error
from runstore.storage._replace import TEMP_SUFFIX

__all__ = ["find", "is_settled", "scan"]

# A folder's time changes whenever a name in it does. So its names need not be listed again while its
# time is the same, if that was a while ago when they were listed: later changes within one tick of the
# disk's clock would not show. Disks with times in whole seconds tick that slowly.
SETTLED_NS = 100_000_000
SETTLED_NS_IN_SECONDS = 2_500_000_000
# Some network mounts make folders' times up, so that even such a listing is trusted only so long.
TRUSTED_NS = 60_000_000_000

# A link that leads nowhere, or to where this process may not look, says nothing of the folder that was
# asked about: it is left out, as a child is that vanished meanwhile.
_LEADS_NOWHERE = {*ABSENT, errno.ELOOP, errno.EACCES, errno.EPERM}


# The runs of a sweep have folders of the same names: each is kept once for all of them.
_names: dict[str, str] = {}
MOST_NAMES = 10_000


class _Mark(NamedTuple):
    """When the names of a folder were listed, and what the folder was then."""

    listed_ns: int
    inode: int
    disk: int
    changed_ns: int

    def holds(self, status: os.stat_result) -> bool:
        """Whether the folder must still have the same names."""
        return (
            status.st_mtime_ns == self.changed_ns
            and status.st_ino == self.inode
            and status.st_dev == self.disk
            and 0 <= time.time_ns() - self.listed_ns < TRUSTED_NS
        )


def scan(path: str, known: StorageListing | None = None) -> StorageListing:
    """The children with their kind, size and age, sorted by name; dangling links are left out.

    Args:
        path: The folder.
        known: An earlier listing of it; `known` itself is returned when all is as it was.
    """
    try:
        if known is not None and known.mark is not None and known.mark.holds(os.stat(path)):
            again = _look_again(path, known)
            if again is not None:
                return again
        return _list(path)
    except OSError as error:
        if error.errno in ABSENT:
            return StorageListing()
        raise storage_error(error, path) from error


def _list(path: str) -> StorageListing:
    now = time.time_ns()
    held: list[int] = []
    try:
        # Through a descriptor a child costs less: no path is made for it.
        open_into(held, path, os.O_RDONLY | os.O_DIRECTORY)
        status = os.fstat(held[0])
        folders, others = _split(held[0])
        files, linked = _look_at(others)
    finally:
        for descriptor in held:
            os.close(descriptor)
    # What a link to a file leads to may come and go without a trace in this folder.
    mark = None if linked else _mark(status, now)
    return StorageListing(files, folders, status.st_dev << 64 | status.st_ino, mark)


def _split(folder: int) -> tuple[list[str], list[os.DirEntry[str]]]:
    """The sorted names of the folders in it, and its other children."""
    folders: list[str] = []
    others: list[os.DirEntry[str]] = []
    if len(_names) > MOST_NAMES:
        _names.clear()
    share = _names.setdefault
    with os.scandir(folder) as children:
        for child in children:
            try:
                is_folder = child.is_dir()
            except OSError as error:
                if not _is_left_out(child, error):
                    raise
                is_folder = False
            if is_folder:
                name = child.name
                folders.append(share(name, name))
            else:
                others.append(child)
    folders.sort()
    if TEMP_SUFFIX in "/".join(folders):
        folders = [name for name in folders if not name.endswith(TEMP_SUFFIX)]
    others.sort(key=_name)
    return folders, others


def _look_at(children: list[os.DirEntry[str]]) -> tuple[dict[str, StorageStat], bool]:
    """The files by name, and whether a child is a link."""
    files: dict[str, StorageStat] = {}
    linked = False
    for child in children:
        linked = linked or child.is_symlink()
        if child.name.endswith(TEMP_SUFFIX):
            continue
        try:
            status = child.stat()
        except OSError as error:
            if not _is_left_out(child, error):
                raise
            continue
        files[child.name] = StorageStat(status.st_size, status.st_mtime)
    return files, linked


def _is_left_out(child: os.DirEntry[str], error: OSError) -> bool:
    return error.errno in (_LEADS_NOWHERE if child.is_symlink() else ABSENT)


_name = operator.attrgetter("name")


def _mark(status: os.stat_result, now: int) -> _Mark | None:
    if not is_settled(status.st_mtime_ns, now):
        return None
    return _Mark(now, status.st_ino, status.st_dev, status.st_mtime_ns)


def is_settled(changed_ns: int, now_ns: int) -> bool:
    """Whether a change from now on gets another time than the last one has."""
    settled = SETTLED_NS if changed_ns % 1_000_000_000 else SETTLED_NS_IN_SECONDS
    return now_ns - changed_ns >= settled


def _look_again(path: str, known: StorageListing) -> StorageListing | None:
    """The listing with the files as they are now; `None` when one is gone after all."""
    changed: dict[str, StorageStat] = {}
    for name, stat in known.files.items():
        try:
            status = os.stat(f"{path}/{name}")
        except OSError:
            return None
        if status.st_mtime != stat.mtime or status.st_size != stat.size:
            changed[name] = StorageStat(status.st_size, status.st_mtime)
    if not changed:
        return known
    return StorageListing({**known.files, **changed}, known.folders, known.place, known.mark)


def find(root: str, starting: str, depth: int | None) -> dict[str, StorageStat]:
    """Every file below `root` whose relative path starts so and has at most `depth` parts.

    A folder linked into itself ends the descent; one that may not be read is left out.
    """
    found: dict[str, StorageStat] = {}
    folders = [("", frozenset[object]())]
    while folders:
        folder, above = folders.pop()
        try:
            listing = scan(f"{root}/{folder}" if folder else root)
        except AccessDeniedError:
            if folder:
                continue
            raise
        if listing.place in above:
            continue
        inside = above | {listing.place}
        before = f"{folder}/" if folder else ""
        for name, stat in listing.files.items():
            path = before + name
            if path.startswith(starting):
                found[path] = stat
        for name in listing.folders:
            path = before + name
            if may_hold(path, starting, depth):
                folders.append((path, inside))
    return dict(sorted(found.items()))
