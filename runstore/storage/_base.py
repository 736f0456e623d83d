"""The contract that every storage backend meets: bytes at a path.

The docstrings of `AsyncStorage` are the specification; a backend neither repeats nor bends them,
and `runstore.testing.StorageConformance` checks them. A backend implements the abstract methods
of `AsyncStorage`; the other async methods have defaults that are right, and slower than what a
backend can usually do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from runstore.storage import _bridge
from runstore.storage._answers import OpenFile, StorageListing, StorageStat
from runstore.storage._append_queue import in_turn
from runstore.storage._paths import check_file, check_path, storage_join
from runstore.storage._twins import show_twins

__all__ = ["SYNC_METHODS", "AsyncStorage", "Storage", "run_sync_over"]

P = ParamSpec("P")
T = TypeVar("T")


# The sync operations of the model, which every storage written for it has.
SYNC_METHODS = (
    "read",
    "write",
    "append",
    "exists",
    "stat",
    "read_range",
    "list_dir",
    "remove",
    "remove_dir",
)


def _has_methods(kind: type, names: Sequence[str]) -> bool:
    return all(callable(getattr(kind, name, None)) for name in names)


def may_hold(folder: str, starting: str, depth: int | None) -> bool:
    """Whether a folder, by its relative path, can hold a file that `afind` looks for."""
    return (folder + "/").startswith(starting[: len(folder) + 1]) and (
        depth is None or folder.count("/") + 2 <= depth
    )


class AsyncStorage(ABC):
    """The async half of a storage: what a backend implements.

    Paths are relative, '/'-separated strings. A path that would leave the root (`..`, absolute,
    NUL) raises `InvalidInputError`, a `ValueError` whose message contains "escapes", before any
    I/O. The check is lexical; symbolic links are followed. Writing to the root itself (`""`)
    raises `InvalidInputError` too.

    "Missing" means that there is no file at the path, and nothing else: no permission, a full
    disk, an unreachable server each raise an error of their own (see `runstore.errors`).

    An operation that is cancelled has either finished or not begun when the cancellation is
    raised. Instances may be pickled at any time, and used from any thread, any event loop and
    any forked or spawned process.

    Attributes:
        fetch_size: Bytes that who reads a file from end to end asks for at a time.
        keeps_folders: Whether a folder can be there without a file in it.
    """

    keeps_folders: bool = True

    # More at a time, and the last pieces are out of the processor's cache again when they are parsed.
    fetch_size: ClassVar[int] = 1024 * 1024

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        twins = [f"a{name}" for name in SYNC_METHODS]
        return _has_methods(other, twins) if cls is AsyncStorage else NotImplemented

    @abstractmethod
    def url(self, path: str = "") -> str:
        """URI of a path, for people and for tools that take URIs; no secret is ever part of it."""

    def identity(self) -> Hashable:
        """A key under which work is shared: storages with equal keys hold the same files."""
        return self

    def durable_view(self) -> Self:
        """The same files as the backend has them, without what is held back here.

        Reading them never flushes; the storage itself, where nothing is held back.
        """
        return self

    @abstractmethod
    async def aread(self, path: str) -> bytes:
        """The whole file.

        Raises:
            NotFoundError: There is no file at the path.
        """

    @abstractmethod
    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        """Bytes of a file from `offset` on.

        Args:
            path: The file.
            offset: First byte to read, from 0.
            length: How many bytes at most; to the end of the file when `None`.

        Returns:
            The bytes; fewer than `length` only where the file ends, `b""` at or past its end.

        Raises:
            InvalidInputError: `offset` or `length` is negative.
            NotFoundError: There is no file at the path.
        """

    @abstractmethod
    async def awrite(self, path: str, data: bytes) -> None:
        """Replace the whole file, creating it and its parent folders as needed.

        Atomic: a reader, and whoever comes after a crash, sees the old content or the new one.
        """

    @abstractmethod
    async def aappend(self, path: str, data: bytes) -> None:
        """Add bytes at the end of a file, creating it and its parent folders as needed.

        One whole write, next to which the appends of other processes stand whole too. Appends
        that one event loop makes to one file land in the order in which they were called.
        """

    @abstractmethod
    async def astat(self, path: str) -> StorageStat | None:
        """Size and age of a file, or `None` when there is no file; a folder is not a file."""

    @abstractmethod
    async def alist_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children, files and folders; `[]` when there is nothing."""

    @abstractmethod
    async def aremove(self, path: str) -> None:
        """Delete a file; no error when it is missing."""

    @abstractmethod
    async def aremove_dir(self, path: str) -> None:
        """Delete an empty folder; no error when it is missing or not empty."""

    async def aexists(self, path: str) -> bool:
        """Whether there is a file at the path; a folder is not a file."""
        return await self.astat(path) is not None

    async def aappend_lines(self, path: str, data: bytes) -> None:
        """Append whole lines, so that they stay apart from what a crashed writer left unfinished.

        If the last byte of the file is not a newline, one is written first, in the same operation.
        The lines of one event loop land in the order of their calls.

        Args:
            path: The file.
            data: One or more lines, each with its newline.
        """
        key = (self.identity(), check_file(path))
        await in_turn(key, partial(self._append_apart, path, data))

    async def _append_apart(self, path: str, data: bytes) -> None:
        stat = await self.astat(path)
        if stat is not None and stat.size:
            last = await self.aread_range(path, stat.size - 1, 1)
            if last not in (b"", b"\n"):
                data = b"\n" + data
        await self.aappend(path, data)

    async def ascan(
        self,
        prefix: str,
        known: StorageListing | None = None,  # noqa: ARG002  only some backends can use it
    ) -> StorageListing:
        """The immediate children with their kind, and size and age of the files.

        A backend whose listings carry these answers from one request.

        Args:
            prefix: The folder.
            known: What an earlier call for this folder returned; a backend that can tell that
                something is still the same need not look at it again, and returns this very object
                where everything is.
        """
        names = await self.alist_dir(prefix)
        stats = await _bridge.gather([partial(self.astat, storage_join(prefix, name)) for name in names])
        pairs = list(zip(names, stats, strict=True))
        return StorageListing(
            {name: stat for name, stat in pairs if stat is not None},
            [name for name, stat in pairs if stat is None],
        )

    async def afind(
        self, prefix: str, starting: str = "", depth: int | None = None
    ) -> dict[str, StorageStat]:
        """Every file below a folder, in one pass.

        Args:
            prefix: The folder.
            starting: Only files whose path relative to the folder starts so. Folders that cannot
                hold such a file are not entered.
            depth: Only files whose relative path has so many parts at most; at any depth when `None`.

        Returns:
            Size and age by path relative to the folder, in order of paths.
        """
        check_path(prefix)
        found: dict[str, StorageStat] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            listing = await self.ascan(storage_join(prefix, folder))
            for name, stat in listing.files.items():
                path = storage_join(folder, name)
                if path.startswith(starting):
                    found[path] = stat
            below = [storage_join(folder, name) for name in listing.folders]
            folders += [path for path in below if may_hold(path, starting, depth)]
        return dict(sorted(found.items()))

    async def awatch(self, path: str, seen: Hashable, seconds: float) -> Hashable:
        """Wait until a file may have changed, or until `seconds` are over.

        Args:
            path: The file; it may be missing.
            seen: What the previous call returned, `None` the first time.
            seconds: The longest wait.

        Returns:
            A token for the state of the file before any change that comes after this call. The
            default knows nothing of the file: it waits the whole time.
        """
        check_path(path)
        if seen is not None:
            await _bridge.pause(seconds)
        return object()

    async def aflush(self) -> None:  # noqa: B027  right where nothing is held back
        """Everything appended so far is durable in the backend when this returns."""

    async def aclose(self) -> None:
        """Flush and release what is held. Idempotent; a closed storage may be used again."""
        await self.aflush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@show_twins
class Storage(AsyncStorage):
    """A storage: every async operation, and its sync twin without the leading `a`.

    A sync twin takes the same arguments and gives the same result; it works on any thread, inside
    a running event loop too, where it blocks only its caller.

    A subclass may also define the sync methods alone, as classes written for `tinker_cookbook.stores`
    do: its async methods then run them in threads. `isinstance` goes by the methods, so that it is
    true of an object of any class that has them.

    Attributes:
        runs_in_place: Whether the operations block the calling thread anyway (local files), so that
            a sync call finishes them there rather than on the process's I/O loop.
    """

    runs_in_place: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.read is not Storage.read and cls.aread is AsyncStorage.aread:
            cls.runs_in_place = True
            for name in _overridden(cls):
                setattr(cls, f"a{name}", _thread_twin(f"a{name}"))

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return _has_methods(other, SYNC_METHODS) if cls is Storage else NotImplemented

    def run_sync(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a coroutine function that uses this storage, and wait for its result.

        It runs in place where `runs_in_place` says so, else on the process's I/O loop, which owns
        every remote session.

        Raises:
            EventLoopError: The calling thread is the I/O loop's own; await the async twin there.
        """
        run = _bridge.drive if self.runs_in_place else _bridge.call_on_io_loop
        return run(function, *args, **kwargs)

    def signature(self, path: str) -> Hashable | None:  # noqa: ARG002  for backends
        """What is another after every change of a file, for who asks often; it blocks as a sync twin does.

        Returns:
            `None` where that is not known, or costs no less than reading the end of the file.
        """
        return None

    def open_file(self, path: str) -> OpenFile | None:  # noqa: ARG002  for backends
        """The file, to be held open by who reads it from end to end; nothing is opened by this call.

        Returns:
            `None` where that costs no less than one `aread_range` after the other.
        """
        return None

    def run_append(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run_sync`, for a function whose only operations are appends.

        A storage that keeps appends on the local disk first finishes them in place.
        """
        return self.run_sync(function, *args, **kwargs)

    def read(self, path: str) -> bytes:
        """Sync twin of `aread`."""
        return self.run_sync(self.aread, path)

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        """Sync twin of `aread_range`."""
        return self.run_sync(self.aread_range, path, offset, length)

    def write(self, path: str, data: bytes) -> None:
        """Sync twin of `awrite`."""
        return self.run_sync(self.awrite, path, data)

    def append(self, path: str, data: bytes) -> None:
        """Sync twin of `aappend`."""
        return self.run_append(self.aappend, path, data)

    def append_lines(self, path: str, data: bytes) -> None:
        """Sync twin of `aappend_lines`."""
        return self.run_append(self.aappend_lines, path, data)

    def stat(self, path: str) -> StorageStat | None:
        """Sync twin of `astat`."""
        return self.run_sync(self.astat, path)

    def exists(self, path: str) -> bool:
        """Sync twin of `aexists`."""
        return self.run_sync(self.aexists, path)

    def list_dir(self, prefix: str) -> list[str]:
        """Sync twin of `alist_dir`."""
        return self.run_sync(self.alist_dir, prefix)

    def scan(self, prefix: str, known: StorageListing | None = None) -> StorageListing:
        """Sync twin of `ascan`."""
        return self.run_sync(self.ascan, prefix, known)

    def find(self, prefix: str, starting: str = "", depth: int | None = None) -> dict[str, StorageStat]:
        """Sync twin of `afind`."""
        return self.run_sync(self.afind, prefix, starting, depth)

    def watch(self, path: str, seen: Hashable, seconds: float) -> Hashable:
        """Sync twin of `awatch`."""
        return self.run_sync(self.awatch, path, seen, seconds)

    def remove(self, path: str) -> None:
        """Sync twin of `aremove`."""
        return self.run_sync(self.aremove, path)

    def remove_dir(self, path: str) -> None:
        """Sync twin of `aremove_dir`."""
        return self.run_sync(self.aremove_dir, path)

    def flush(self) -> None:
        """Sync twin of `aflush`."""
        return self.run_sync(self.aflush)

    def close(self) -> None:
        """Sync twin of `aclose`."""
        return self.run_sync(self.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _overridden(cls: type[Storage]) -> list[str]:
    """The sync methods that a subclass defines itself."""
    names = (*SYNC_METHODS, "flush", "close")
    return [name for name in names if getattr(cls, name) is not getattr(Storage, name)]


def _thread_twin(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The async twin of a method that a subclass defines only in its sync form."""

    async def twin(self: Storage, *args: Any, **kwargs: Any) -> Any:
        from runstore.storage._sync_only import SyncOnlyStorage  # noqa: PLC0415  it imports this module

        return await getattr(SyncOnlyStorage(self), name)(*args, **kwargs)

    twin.__name__ = name
    return twin


def run_sync_over(
    storages: Sequence[Storage],
    function: Callable[P, Coroutine[Any, Any, T]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """As `Storage.run_sync`, for a function that uses several storages: in place if all of them do."""
    remote = next((storage for storage in storages if not storage.runs_in_place), storages[0])
    return remote.run_sync(function, *args, **kwargs)
