"""Files that are appended to in a store without appends: spooled at once, delivered in the background.

One `AppendedFile` a process and object, whatever number of storages and pickled copies of them there
are. `append_all` ends on the local disk; `flush` delivers what is pending, and a background task does so
every interval while there is something.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence

from runstore.errors import (
    RunStoreError,
    SpoolKeptWarning,
    UploadDelayedWarning,
)
from runstore.remote._errors import warn
from runstore.remote._marks import is_stale
from runstore.remote._owners import Place
from runstore.remote._segment import Base, Segment
from runstore.remote._spool import Spool
from runstore.storage._append_queue import Append
from runstore.storage._bridge import call_on_io_loop, gather, in_thread, on_fork, spawn_on_io_loop

__all__ = [
    "EXIT_SECONDS",
    "FLUSH_SECONDS",
    "PREPARE_SECONDS",
    "AppendedFile",
    "Committer",
    "appended_files",
    "flush_all",
    "prepare_all",
]

# A request costs money: at one each 10 s a file costs 8,640 a day.
FLUSH_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 60.0
FILES_AT_ONCE = 16
# What the end of a process may wait for its servers, for all its deliveries.
EXIT_SECONDS = 3.0
# And for what it has to do itself before: on a busy machine, loading a client takes seconds.
PREPARE_SECONDS = 10.0


class Committer(ABC):
    """How segments get into one object; every method runs on the I/O loop.

    Attributes:
        took: Seconds of the last commit, from the beginning of the attempt that succeeded.
    """

    took: float = 0.0

    async def prepare(self) -> None:  # noqa: B027  right where there is nothing to do
        """Load and make what requests need."""

    @abstractmethod
    async def learn(self) -> Base:
        """What the object is now."""

    @abstractmethod
    async def commit(self, segments: Sequence[Segment], spool: Spool) -> Base:
        """Append segments, each exactly once, however often this is tried.

        Returns:
            What the object is then.
        """

    async def abort(self, attempts: Sequence[str]) -> None:  # noqa: B027  right where they leave nothing
        """Free what attempts have left that nobody finishes."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what is known of the object."""

    async def without_stale(self, segments: Sequence[Segment], now: Base, spool: Spool) -> list[Segment]:
        """The segments that belong to the object as it is; the others are set aside and reported."""
        stale = [segment for segment in segments if is_stale(segment, now)]
        for segment in stale:
            kept = await in_thread(spool.set_aside, segment)
            warn(
                f"{len(segment.frames)} appends of a process that died were made to another "
                f"{spool.place.key} than the one in {spool.place.store} now, which was truncated or replaced "
                f"since: they are not appended, and kept in {kept}",
                SpoolKeptWarning,
            )
        return [segment for segment in segments if segment not in stale]


class AppendedFile:
    """The pending appends to one object, and their delivery."""

    def __init__(self, place: Place, url: str) -> None:
        self.place = place
        self.url = url
        self.interval = FLUSH_SECONDS
        self.spool = Spool(place)
        self.failure: Exception | None = None  # of the last attempt to deliver
        self._committer: Committer
        self._credentials: Hashable = None
        self._lock = threading.Lock()
        self._looked = False
        self._may_not_deliver: set[Hashable] = set()
        self._delivering = False
        self._wait = 0.0
        self._turn = asyncio.Lock()

    def use(self, credentials: Hashable, committer: Callable[[], Committer]) -> bool:
        """Deliver with the credentials of who appended last.

        Returns:
            Whether these are others than before.
        """
        if self._credentials == credentials:
            return False
        self._committer = committer()
        self._credentials = credentials
        return True

    @property
    def lacks_credentials(self) -> bool:
        """Whether there are none yet, or those there are were refused."""
        refused = self._credentials in self._may_not_deliver or isinstance(self.failure, PermissionError)
        return refused or self._credentials is None

    # ---- appending: in any thread

    def append_all(self, appends: Sequence[Append]) -> list[RunStoreError | None]:
        """Append several in order: they are safe on the local disk when this returns."""
        if not self._looked:
            self.take_over()
        outcomes = self.spool.append_all(appends)
        if appended_files.exiting:
            self._deliver_now()
        elif not self._delivering:
            self._begin_delivery()
        return outcomes

    def take_over(self) -> None:
        """Take what dead processes of this machine left for this object."""
        self._looked = True
        if self._credentials not in self._may_not_deliver:
            self.spool.take_over()

    def _begin_delivery(self) -> None:
        with self._lock:
            if self._delivering or not self.spool.pending:
                return
            self._delivering = True
        try:
            spawn_on_io_loop(self._deliver)
        except BaseException as error:
            self._delivering = False  # the next append tries again
            if not isinstance(error, Exception):
                raise
            # No thread can start: what was appended is safe in the spool all the same.

    def _deliver_now(self) -> None:
        """Deliver at once, as the process is ending, or leave it in the spool."""
        with contextlib.suppress(Exception):
            call_on_io_loop(self._flush_within, EXIT_SECONDS)

    async def _flush_within(self, seconds: float) -> None:
        await prepare_all([self])
        async with asyncio.timeout(seconds):
            await self.flush()

    async def prepare(self) -> None:
        """Load and make what delivering needs."""
        await self._committer.prepare()

    # ---- delivery: on the I/O loop

    async def _deliver(self) -> None:
        try:
            await self._deliver_until_done()
        except BaseException:
            self._delivering = False  # the next append tries again
            raise

    async def _deliver_until_done(self) -> None:
        """Flush every interval until nothing is pending."""
        try:
            await self._learn()
        except Exception as error:  # noqa: BLE001  it comes again when it is delivered
            self.failure = error
        failed_since: float | None = None
        while True:
            await asyncio.sleep(self._pause(failed_since))
            try:
                await self.flush()
                failed_since = None
            except Exception as error:  # noqa: BLE001  whatever it was, nobody else would try again
                if failed_since is None:
                    failed_since = time.monotonic()
                    warn(
                        f"appends to {self.url} cannot be uploaded now and wait in {self.place.folder}; they "
                        f"are tried again, by this process or the next one: {error}",
                        UploadDelayedWarning,
                    )
            with self._lock:
                if not self.spool.pending:
                    self._delivering = False
                    return

    def _pause(self, failed_since: float | None) -> float:
        if failed_since is None:
            return max(self.interval, self._wait)
        return min(max(self.interval, time.monotonic() - failed_since), LONGEST_RETRY_SECONDS)

    async def _learn(self) -> None:
        """Note what the appends are made to, so that a later process can tell whether it is still there."""
        async with self._turn:
            base = await self._committer.learn()
            await in_thread(self.spool.remember, base)

    async def flush(self) -> None:
        """Deliver everything that is pending now.

        Raises:
            RunStoreError: The store did not take it; it stays in the spool.
        """
        if not self.spool.pending:
            return
        async with self._turn:
            try:
                await self._flush()
                self.failure = None
            except BaseException as error:
                # Others may be able to deliver what dead processes left.
                await in_thread(self.spool.leave)
                if isinstance(error, Exception):
                    self.failure = error
                raise
            self._wait = 10 * self._committer.took

    async def _flush(self) -> None:
        await in_thread(self.take_over)
        left = await in_thread(self.spool.seal)
        while left:
            segments = await in_thread(self.spool.load, left)
            left = left[max(len(segments), 1) :]
            whole = [segment for segment in segments if segment.frames]
            if whole:
                await self._commit(whole)
            if self._credentials in self._may_not_deliver:
                left = [sealed for sealed in left if not sealed.abandoned]
            await in_thread(self.spool.drop, [segment for segment in segments if not segment.frames])

    async def _commit(self, segments: Sequence[Segment]) -> None:
        try:
            base = await self._committer.commit(segments, self.spool)
        except PermissionError as error:
            if any(segment.file.abandoned for segment in segments):
                await self._leave(error)
            if not all(segment.file.abandoned for segment in segments):
                raise
            return
        # What a dead owner may have left unfinished; a living one ends its own.
        abandoned = [segment for segment in segments if segment.file.abandoned]
        await self._committer.abort([attempt for segment in abandoned for attempt in segment.attempts])
        await in_thread(self.spool.remember, base)
        await in_thread(self.spool.drop, segments)

    async def _leave(self, error: PermissionError) -> None:
        """Leave what others left and these credentials may not deliver."""
        self._may_not_deliver.add(self._credentials)
        await in_thread(self.spool.leave)
        warn(
            f"a process that died left appends to {self.url} in {self.place.folder}, and this one may not "
            f"deliver them: {error}",
            SpoolKeptWarning,
        )

    async def close(self) -> None:
        """Give up the lock file when nothing is pending."""
        async with self._turn:
            await in_thread(self.spool.close)
            if not self.spool.pending:
                self._committer.forget()
                self._looked = False

    async def forget(self) -> None:
        """The object was written or removed otherwise: what is known of it no longer holds."""
        self._committer.forget()
        await in_thread(self.spool.remember, None)


class _AppendedFiles:
    """The appended files of this process, by place."""

    def __init__(self) -> None:
        self._by_place: dict[Place, AppendedFile] = {}
        self.exiting = False
        on_fork(self)

    def after_fork(self) -> None:
        for file in self._by_place.values():
            file.spool.abandon()
        self._by_place = {}
        self.exiting = False

    def get(self, place: Place, url: str) -> AppendedFile:
        file = self._by_place.get(place)
        if file is None:
            file = self._by_place.setdefault(place, AppendedFile(place, url))
        return file

    def known(self, place: Place) -> AppendedFile | None:
        return self._by_place.get(place)

    def below(self, store: str, prefix: str) -> list[AppendedFile]:
        """Those of a store whose keys begin with a prefix."""
        return [
            file
            for place, file in list(self._by_place.items())
            if place.store == store and place.key.startswith(prefix)
        ]

    def all(self) -> list[AppendedFile]:
        return list(self._by_place.values())

    def pending(self) -> list[AppendedFile]:
        return [file for file in self.all() if file.spool.pending]


async def prepare_all(files: Sequence[AppendedFile]) -> None:
    """Load and make what delivering several files needs; a failure comes again when they are delivered."""
    with contextlib.suppress(RunStoreError, TimeoutError):
        async with asyncio.timeout(PREPARE_SECONDS):
            await gather([file.prepare for file in files], FILES_AT_ONCE)


async def flush_all(
    files: Sequence[AppendedFile], flush: Callable[[AppendedFile], Awaitable[None]] = AppendedFile.flush
) -> None:
    """Flush several files; all are tried before the first failure is raised."""

    async def attempt(file: AppendedFile) -> RunStoreError | None:
        try:
            await flush(file)
        except RunStoreError as error:
            return error
        return None

    pending = [file for file in files if file.spool.pending]
    outcomes = await gather([lambda file=file: attempt(file) for file in pending], FILES_AT_ONCE)  # type: ignore[misc]
    for error in outcomes:
        if error is not None:
            raise error


appended_files = _AppendedFiles()
