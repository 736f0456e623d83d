"""Whose spool is whose: the folder of an object's spools, and the lock files of their owners."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from runstore.storage._replace import write_or_raise

__all__ = ["VARIABLE", "Lock", "Place", "abandoned_locks", "new_lock", "spool_folder", "spooled_keys"]

VARIABLE = "RUNSTORE_SPOOL_DIR"
MOST_TRIES = 100


class Place(NamedTuple):
    """One object of one store."""

    store: str
    """The store's URI and, where it has one, its endpoint."""
    key: str

    @property
    def folder(self) -> Path:
        """Where the spools of this object lie."""
        return spool_folder() / _digest(self.store) / _digest(self.key)


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:20]


def spool_folder() -> Path:
    """The folder of all spools: `$RUNSTORE_SPOOL_DIR`, else `runstore/spool` in the user's cache folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path  # noqa: PLC0415  `import runstore` stays light

    return user_cache_path("runstore", appauthor=False) / "spool"


@functools.cache
def _machine() -> tuple[str, str]:
    """What tells this machine, and its running system, from others that share the folder."""
    machine = _first_line("/etc/machine-id") or _first_line("/var/lib/dbus/machine-id") or os.uname().nodename
    return machine, _first_line("/proc/sys/kernel/random/boot_id")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


class Lock(NamedTuple):
    """A locked lock file."""

    owner: str
    path: str
    descriptor: int

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self.descriptor)


def _take(path: str) -> int | None:
    """A descriptor of a lock file, locked; `None` when another process has it, or it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def new_lock(place: Place, owner: str) -> Lock:
    """The lock file of an owner, made and locked."""
    for _ in range(MOST_TRIES):
        # Others remove the folder while it is empty.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _make_lock(place, owner)
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # says what is in the way
    msg = "the lock file of a new spool cannot be made"
    raise OSError(errno.EBUSY, msg)


def _make_lock(place: Place, owner: str) -> Lock:
    """Others see the file only once it is whole and locked, so that nobody takes it for a dead one's."""
    machine, boot = _machine()
    header = {"machine": machine, "boot": boot, "pid": os.getpid(), "made": time.time()}
    path = str(place.folder / f"{owner}.lock")
    making = f"{path}.{secrets.token_hex(4)}"
    lock = Lock(owner, making, os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        fcntl.flock(lock.descriptor, fcntl.LOCK_EX)
        write_or_raise(lock.descriptor, json.dumps(place._asdict() | header).encode())
        os.rename(making, path)
    except BaseException:
        lock.release()
        raise
    return lock._replace(path=path)


def abandoned_locks(place: Place) -> Iterator[Lock]:
    """Locks of dead owners of this machine, taken; a living owner, this process too, holds its own."""
    try:
        names = sorted(os.listdir(place.folder))
    except (FileNotFoundError, PermissionError):  # there is none, or it is another user's
        return
    for name in names:
        path = str(place.folder / name)
        descriptor = _take(path) if name.endswith(".lock") else None
        if descriptor is None:
            continue
        if _is_of_this_machine(_header(path)):
            yield Lock(name.removesuffix(".lock"), path, descriptor)
        else:
            os.close(descriptor)


def _header(path: str) -> dict[str, Any]:
    try:
        header = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}  # not one of ours, or damaged: only the segments beside it tell
    return header if isinstance(header, dict) else {}


def _is_of_this_machine(header: dict[str, Any]) -> bool:
    """Whether the lock of its owner can be trusted: the folder may be a network home.

    In containers the machine's id may change with every start, or be that of the image; the running
    system's does not.
    """
    machine, boot = _machine()
    return not header or header.get("machine") == machine or (bool(boot) and header.get("boot") == boot)


def spooled_keys(store: str) -> list[str]:
    """Keys of a store that there are spools for, of dead owners or living ones."""
    keys: set[str] = set()
    for lock in (spool_folder() / _digest(store)).glob("*/*.lock"):
        header = _header(str(lock))
        if header.get("store") == store and isinstance(header.get("key"), str):
            keys.add(header["key"])
    return sorted(keys)
