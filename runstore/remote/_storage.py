"""Runs on any filesystem of fsspec, in a bucket above all."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from runstore.errors import InvalidInputError, RunStoreError
from runstore.remote._appended import FLUSH_SECONDS, AppendedFile, appended_files, flush_all
from runstore.remote._exit import deliver_at_exit
from runstore.remote._open import Source, open_files
from runstore.remote._owners import Place, spooled_keys
from runstore.remote._s3_files import S3Files
from runstore.storage._answers import StorageListing, StorageStat
from runstore.storage._append_queue import Append, in_turn, queue_append
from runstore.storage._base import Storage
from runstore.storage._bridge import drive, in_thread, is_inline, on_io_loop
from runstore.storage._paths import as_bytes, check_file, check_path, check_range
from runstore.storage._patience import finish

__all__ = ["FsspecStorage", "S3Storage"]

P = ParamSpec("P")
T = TypeVar("T")


class FsspecStorage(Storage):
    """Files of an fsspec filesystem, on the process's I/O loop.

    Appends are safe on the local disk when they return, and are delivered in the background every
    `flush_interval`, by `flush`, by `close`, at exit, or after a crash by the next process that uses the
    file; see `runstore.remote`. Filesystems that can append (`file://`, `memory://`, `sftp://` …) do so
    at once. Reading, listing or replacing a file delivers what is pending for it first.

    A filesystem of S3 is used as `S3Storage` uses it. The filesystem handed over is not used itself, but
    one of the same class and options, so that its loop and its caches are left alone.
    """

    fetch_size = 16 * 1024 * 1024

    def __init__(
        self, fs: Any, root: str = "", *, flush_interval: float = FLUSH_SECONDS, **fs_kwargs: Any
    ) -> None:
        """Name a folder; nothing is contacted.

        Args:
            fs: A filesystem, or its protocol (`"s3"`, `"gs"`, `"memory"` …).
            root: The folder: `bucket/prefix` for S3.
            flush_interval: Seconds that an append waits before it is delivered in the background, or ten
                times what the last delivery took where that is longer; each delivery costs requests.
            **fs_kwargs: Options of the filesystem, beside those that it was made with.

        Raises:
            InvalidInputError: It is no filesystem, or the root or the interval cannot be right.
            MissingDependencyError: A package is missing that the protocol needs.
        """
        kind: type = type(flush_interval)
        if kind not in {int, float} or not flush_interval > 0:
            msg = f"flush_interval must be positive seconds, not {flush_interval!r}"
            raise InvalidInputError(msg)
        self._source = Source.of(fs)
        self._root = root
        self._options = fs_kwargs
        self._interval = flush_interval
        self._delivers = True
        self._open()

    def _open(self) -> None:
        """What is not pickled."""
        deliver_at_exit()
        self._files, self._folder = open_files(self._source, self._root, self._options)
        self.keeps_folders = self._files.appends
        self._places: dict[str, Place] = {}
        self._store: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_source", "_root", "_options", "_interval", "_delivers")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url()!r})"

    def identity(self) -> Hashable:
        return (self._files.identity(), self._folder)

    def url(self, path: str = "") -> str:
        return self._files.url(self._key(check_path(path)))

    def durable_view(self) -> Self:
        view = copy.copy(self)
        view._delivers = False  # noqa: SLF001  of the same class
        return view

    def _key(self, checked: str) -> str:
        return f"{self._folder}/{checked}" if self._folder and checked else self._folder or checked

    def run_append(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        run = self.run_sync if self._files.appends else drive
        return run(function, *args, **kwargs)

    # ---- reading

    async def aread(self, path: str) -> bytes:
        return await on_io_loop(self._read, check_path(path), 0, None)

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        check_range(path, offset, length)
        return await on_io_loop(self._read, check_path(path), offset, length)

    async def _read(self, checked: str, offset: int, length: int | None) -> bytes:
        await self._deliver(checked)
        return await self._files.read(self._key(checked), offset, length)

    async def astat(self, path: str) -> StorageStat | None:
        return await on_io_loop(self._stat, check_path(path))

    async def _stat(self, checked: str) -> StorageStat | None:
        await self._deliver(checked)
        return await self._files.stat(self._key(checked)) if checked else None

    async def alist_dir(self, prefix: str) -> list[str]:
        listing = await self.ascan(prefix)
        return sorted({*listing.files, *listing.folders})

    async def ascan(
        self,
        prefix: str,
        known: StorageListing | None = None,  # noqa: ARG002  one request tells everything
    ) -> StorageListing:
        return await on_io_loop(self._scan, check_path(prefix))

    async def _scan(self, checked: str) -> StorageListing:
        await self._deliver_below(checked)
        return await self._files.scan(self._key(checked))

    async def afind(
        self, prefix: str, starting: str = "", depth: int | None = None
    ) -> dict[str, StorageStat]:
        found = await on_io_loop(self._find, check_path(prefix), starting, depth)
        return await super().afind(prefix, starting, depth) if found is None else found

    async def _find(self, checked: str, starting: str, depth: int | None) -> dict[str, StorageStat] | None:
        await self._deliver_below(checked)
        return await self._files.find(self._key(checked), starting, depth)

    # ---- writing

    async def awrite(self, path: str, data: bytes) -> None:
        await on_io_loop(finish, partial(self._write, check_file(path), as_bytes(path, data)))

    async def _write(self, checked: str, data: bytes) -> None:
        await self._changed(checked, partial(self._files.write, self._key(checked), data))

    async def aremove(self, path: str) -> None:
        checked = check_path(path)
        if checked:
            await on_io_loop(finish, partial(self._remove, checked))

    async def _remove(self, checked: str) -> None:
        await self._changed(checked, partial(self._files.remove, self._key(checked)))

    async def _changed(self, checked: str, change: Any) -> None:
        """Make a change to a whole file, after what was appended to it before."""
        await self._deliver(checked)
        key = self._key(checked)
        await in_turn((self.identity(), key), change)
        file = None if self._files.appends else appended_files.known(await self._place(checked))
        if file is not None:
            await file.forget()

    async def aremove_dir(self, path: str) -> None:
        checked = check_path(path)
        if checked:
            await on_io_loop(self._files.remove_dir, self._key(checked))

    # ---- appending

    async def aappend(self, path: str, data: bytes) -> None:
        await self._append(path, Append(as_bytes(path, data), whole_lines=False, durable=False))

    async def aappend_lines(self, path: str, data: bytes) -> None:
        await self._append(path, Append(as_bytes(path, data), whole_lines=True, durable=False))

    async def _append(self, path: str, append: Append) -> None:
        checked = check_file(path)
        if self._files.appends:
            await on_io_loop(finish, partial(self._append_at_once, checked, append))
            return
        append_all = partial(self._append_all, checked)
        if is_inline():
            (error,) = append_all([append])
            if error is not None:
                raise error
        else:  # nothing may be awaited before, or calls could overtake each other
            await queue_append((self.identity(), self._key(checked)), append_all, append)

    def _append_all(self, checked: str, appends: Sequence[Append]) -> Sequence[BaseException | None]:
        return self._appended(self._find_place(checked)).append_all(appends)

    async def _append_at_once(self, checked: str, append: Append) -> None:
        key = self._key(checked)
        call = partial(self._files.append, key, append.data, append.whole_lines)
        await in_turn((self.identity(), key), call)

    def _appended(self, place: Place) -> AppendedFile:
        """A file to append to: with the credentials and the interval of this storage from now on."""
        file = self._delivered(place)
        self._use(file)
        file.interval = self._interval
        return file

    def _delivered(self, place: Place) -> AppendedFile:
        """A file to deliver: as who appended to it says, unless there is nobody, or that was refused."""
        self._files.hold(self)
        file = appended_files.get(place, self._files.url(place.key))
        if file.lacks_credentials:
            self._use(file)
        return file

    def _use(self, file: AppendedFile) -> bool:
        """Have a file delivered with this storage's credentials; whether these are others than before."""
        return file.use(self._files.identity(), partial(self._files.committer, file.place.key))

    async def _place(self, checked: str) -> Place:
        place = self._places.get(checked)
        return await in_thread(self._find_place, checked) if place is None else place

    def _find_place(self, checked: str) -> Place:
        place = self._places.get(checked)
        if place is None:
            place = self._places[checked] = Place(self._find_store(), self._key(checked))
        return place

    async def _store_name(self) -> str:
        return await in_thread(self._find_store) if self._store is None else self._store

    def _find_store(self) -> str:
        if self._store is None:
            self._store = self._files.store()
        return self._store

    # ---- delivering: on the I/O loop

    async def _deliver(self, checked: str) -> None:
        """Deliver what is pending for a file, and what a dead process left for it."""
        self._files.hold(self)
        if self._files.appends or not self._delivers or not checked:
            return
        file = await in_thread(self._with_what_was_left, await self._place(checked))
        if file is not None:
            await finish(partial(self._flush_file, file))

    async def _flush_file(self, file: AppendedFile) -> None:
        """Flush a file; where the credentials of who appended to it are refused, with this storage's own."""
        try:
            await file.flush()
        except PermissionError:
            if not self._use(file):
                raise
            await file.flush()

    def _with_what_was_left(self, place: Place) -> AppendedFile | None:
        """A file that something may be pending for, what dead processes left for it taken over. Blocks."""
        file = appended_files.known(place)
        if (file is None or not file.spool.pending) and os.path.isdir(place.folder):  # noqa: PTH112  unlike pathlib's it never raises
            file = self._delivered(place)
            file.take_over()
        return file

    async def _deliver_below(self, checked: str) -> None:
        """Deliver what this process has pending below a folder; never what others left."""
        self._files.hold(self)
        if self._delivers and not self._files.appends:
            await flush_all(await self._appended_below(checked), self._flush_file)

    async def _appended_below(self, checked: str) -> list[AppendedFile]:
        key = self._key(checked)
        return appended_files.below(await self._store_name(), f"{key}/" if key else "")

    async def aflush(self) -> None:
        if not self._files.appends:
            await on_io_loop(finish, self._flush)

    async def _flush(self) -> None:
        store = await self._store_name()
        prefix = self._key("") and f"{self._key('')}/"
        for key in await in_thread(spooled_keys, store):
            if key.startswith(prefix):
                await in_thread(self._with_what_was_left, Place(store, key))
        files = await self._appended_below("")
        for file in files:
            self._delivered(file.place)
        await flush_all(files, self._flush_file)

    async def aclose(self) -> None:
        try:
            await self.aflush()
        finally:
            await on_io_loop(finish, self._release)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _in_the_shadow_of(error):
            await self.aclose()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _in_the_shadow_of(error):
            self.close()

    async def _release(self) -> None:
        if not self._files.appends:
            for file in await self._appended_below(""):
                await file.close()
        await self._files.release(self)


class S3Storage(FsspecStorage):
    """Objects below a prefix of a bucket of S3, or of a server that speaks its protocol.

    Appends are exactly-once, also with several writers and through lost replies and crashes, where the
    server honours conditional requests, as AWS does. Credentials and endpoints come the way users of S3
    expect: environment, profile, instance role, or the options of s3fs (`key`, `secret`, `profile`,
    `endpoint_url`, `anon`, `client_kwargs`, `config_kwargs`, `s3_additional_kwargs`). The rights
    PutObject, GetObject and ListBucket on the prefix suffice, with DeleteObject for `remove`.
    """

    def _open(self) -> None:
        super()._open()
        if not isinstance(self._files, S3Files):
            msg = f"{self.url()} is not in S3: use FsspecStorage"
            raise InvalidInputError(msg)


@contextlib.contextmanager
def _in_the_shadow_of(error: BaseException | None) -> Iterator[None]:
    """Let a failure add to the exception that is under way, if there is one, not hide it."""
    try:
        yield
    except RunStoreError as failure:
        if error is None:
            raise
        error.add_note(f"Besides, closing the storage failed: {failure}")
