"""Looking for runs in one storage: a scan a folder, and reading only what changed since the last time."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from runstore.errors import MalformedFileError, NotFoundError, RunStoreError
from runstore.jsonl._decode import Parsed, decode_document, parse_lines, parse_tail
from runstore.storage import Storage, StorageListing, StorageStat
from runstore.storage._bridge import gather
from runstore.stores._checkpoints import is_final
from runstore.stores._run_info import Status, TrainingType, training_type_of
from runstore.stores._training import CHECKPOINTS, CONFIG, METRICS

__all__ = ["Folder", "Rules", "survey"]

_ITERATION = "iteration_"
_AFTER_ITERATIONS = "iteration`"  # the character after the underscore
_NUMBER = slice(len(_ITERATION), None)
_LETTERS = _ITERATION.encode()

# Folders of training and tools, some with thousands of files: none of them is a run, ...
_NO_RUNS = {"checkpoints", "__pycache__", "node_modules"}
# ... and nor are these inside a run.
_NO_RUNS_INSIDE = _NO_RUNS | {"weights", "wandb", "tensorboard"}

_Failure = (RunStoreError, OSError)


class Rules(NamedTuple):
    """How a storage is searched."""

    depth: int
    active_seconds: float
    limit: int


class _Newest(NamedTuple):
    """The file that changed last."""

    mtime: float
    path: str


class _Config(NamedTuple):
    """What a configuration told, good while the file is the same."""

    stat: StorageStat | None = None
    training_type: TrainingType | None = None
    error: str | None = None


class _Checkpoints(NamedTuple):
    """What the checkpoints told, good while the file is the same."""

    stat: StorageStat | None = None
    final: bool = False
    error: str | None = None


@dataclass(slots=True)
class _Iteration:
    """What the folder of the highest iteration holds."""

    folder: str
    listing: StorageListing
    newest: _Newest | None
    looked_at: float
    error: str | None = None


_NO_CONFIG, _NO_CHECKPOINTS = _Config(), _Checkpoints()


@dataclass(slots=True)
class Folder:
    """A folder as it was looked at, and what its files told if it is a run."""

    prefix: str
    listing: StorageListing
    failure: Exception | None = None
    above: frozenset[Hashable] = frozenset()
    iterations: tuple[int, str] = (0, "")
    config: _Config = _NO_CONFIG
    checkpoints: _Checkpoints = _NO_CHECKPOINTS
    iteration: _Iteration | None = None
    newest: _Newest | None = None
    checked_at: float = 0.0
    fresh: bool = False

    @property
    def is_run(self) -> bool:
        """Whether it holds a run."""
        files = self.listing.files
        return METRICS in files or CONFIG in files

    @property
    def status(self) -> Status:
        """A final checkpoint wins over the age of the newest file."""
        if self.checkpoints.final:
            return "completed"
        return "running" if self.fresh else "idle"

    @property
    def error(self) -> str | None:
        """What could not be read."""
        if self.failure is not None:
            return str(self.failure)
        parts = (self.config, self.checkpoints, self.iteration)
        return "; ".join([part.error for part in parts if part is not None and part.error]) or None

    def inside(self) -> frozenset[Hashable]:
        """The folders that what is in this one is in."""
        return self.above | {self.listing.place}

    def below(self) -> list[str]:
        """The folders in it that may be runs or hold some."""
        never = _NO_RUNS_INSIDE if self.is_run else _NO_RUNS
        return [
            _join(self.prefix, name)
            for name in self.listing.folders
            if not name.startswith(".") and name not in never and not _is_iteration(name)
        ]


async def survey(storage: Storage, rules: Rules, known: Mapping[str, Folder]) -> dict[str, Folder]:
    """Look at the root and the folders below it, level by level.

    Args:
        storage: Where runs are.
        rules: How deep to go, and what counts as running.
        known: What the last survey returned.

    Returns:
        The folders looked at, by path.

    Raises:
        RunStoreError: The root cannot be listed.
    """
    look = _Look(storage, rules, known)
    root = await look.at("", frozenset())
    if root.failure is not None:
        raise root.failure
    found = {"": root}
    level = [root]
    for _ in range(rules.depth):
        below = [(path, above) for folder in level for above in [folder.inside()] for path in folder.below()]
        level = await gather([partial(look.at, path, above) for path, above in below], rules.limit)
        found.update((folder.prefix, folder) for folder in level)
    return found


class _Look:
    """One look at the folders of a storage."""

    def __init__(self, storage: Storage, rules: Rules, known: Mapping[str, Folder]) -> None:
        self._storage = storage
        # The scans deliver what this process holds back; a list is not to deliver what a dead one left.
        self._durable = storage.durable_view()
        self._window = rules.active_seconds
        self._known = known
        self._folders: list[str] = []
        self._iterations = (0, "")

    async def at(self, prefix: str, above: frozenset[Hashable]) -> Folder:
        """Scan a folder, and read what changed in it if it is a run."""
        before = self._known.get(prefix)
        try:
            listing = await self._storage.ascan(prefix, None if before is None else before.listing)
        except _Failure as error:
            return Folder(prefix, StorageListing(), error)
        if listing.place is not None and listing.place in above:
            return Folder(prefix, StorageListing())  # a link to a folder that it is in
        folder = Folder(prefix, listing, above=above)
        if folder.is_run:
            await self._describe(folder, before)
        return folder

    async def _describe(self, run: Folder, before: Folder | None) -> None:
        listing = run.listing
        if before is None:
            run.iterations = self._iterations_of(listing.folders)
        else:
            same = listing.folders is before.listing.folders
            run.iterations = before.iterations if same else self._iterations_of(listing.folders)
            run.config, run.checkpoints, run.iteration = before.config, before.checkpoints, before.iteration
        stat = listing.files.get(CONFIG)
        if stat != run.config.stat:
            run.config = await self._read_config(run.prefix, stat)
        stat = listing.files.get(CHECKPOINTS)
        if stat != run.checkpoints.stat:
            run.checkpoints = await self._read_checkpoints(run.prefix, stat)
        run.checked_at = now = time.time()
        run.newest = _newest_of(listing.files)
        run.fresh = self._is_fresh(run.newest, now)
        if run.iterations[0] and not run.fresh and not run.checkpoints.final:
            await self._look_at_iteration(run, now)

    def _iterations_of(self, folders: list[str]) -> tuple[int, str]:
        """How many iterations there are, and the last: the runs of a sweep often have the same ones."""
        if folders != self._folders:
            self._folders, self._iterations = folders, _iterations(folders)
        return self._iterations

    def _is_fresh(self, newest: _Newest | None, now: float) -> bool:
        return newest is not None and now - newest.mtime <= self._window

    async def _look_at_iteration(self, run: Folder, now: float) -> None:
        """The newest file of the highest iteration counts too, where the run's own are too old to decide."""
        folder, last = run.iterations[1], run.iteration
        if last is None or last.folder != folder or self._must_look_again(last, now):
            run.iteration = last = await self._scan_iteration(run, folder, last, now)
        if last.newest is not None and (run.newest is None or last.newest > run.newest):
            run.newest = last.newest
            run.fresh = self._is_fresh(last.newest, now)

    def _must_look_again(self, last: _Iteration, now: float) -> bool:
        """Always where that costs no request; else when its last look may no longer hold."""
        if self._storage.runs_in_place or last.error:
            return True
        was_fresh = self._is_fresh(last.newest, last.looked_at)
        return now - last.looked_at > self._window or (was_fresh and not self._is_fresh(last.newest, now))

    async def _scan_iteration(
        self, run: Folder, folder: str, last: _Iteration | None, now: float
    ) -> _Iteration:
        known = last.listing if last is not None and last.folder == folder else None
        try:
            listing = await self._storage.ascan(_join(run.prefix, folder), known)
        except _Failure as error:
            return _Iteration(folder, StorageListing(), None, now, str(error))
        if last is not None and listing is last.listing:
            last.looked_at = now
            return last
        newest = _newest_of(listing.files)
        if newest is not None:
            newest = newest._replace(path=f"{folder}/{newest.path}")
        return _Iteration(folder, listing, newest, now)

    async def _read_config(self, prefix: str, stat: StorageStat | None) -> _Config:
        path = _join(prefix, CONFIG)
        if stat is None:
            return _NO_CONFIG
        try:
            data = await self._durable.aread(path)
            return _Config(stat, training_type_of(decode_document(data, path)))
        except NotFoundError:
            return _NO_CONFIG
        except MalformedFileError as error:
            return _Config(stat, error=str(error))
        except _Failure as error:
            return _Config(error=str(error))  # without its stat: it is tried again the next time

    async def _read_checkpoints(self, prefix: str, stat: StorageStat | None) -> _Checkpoints:
        path = _join(prefix, CHECKPOINTS)
        if stat is None:
            return _NO_CHECKPOINTS
        try:
            data = await self._durable.aread(path)
        except NotFoundError:
            return _NO_CHECKPOINTS
        except _Failure as error:
            return _Checkpoints(error=str(error))
        whole = data.rfind(b"\n") + 1
        parts = [parse_lines(data[:whole])] if whole else []
        parts += [parse_tail(data[whole:])[0]] if whole < len(data) else []
        return _Checkpoints(stat, any(map(_has_final, parts)), self._malformed(path, parts))

    def _malformed(self, path: str, parts: list[Parsed]) -> str | None:
        problems = [problem for part in parts for problem in part.problems]
        if not problems:
            return None
        return f"{path} has {len(problems)} malformed line(s): {problems[0].reason}"


def _has_final(part: Parsed) -> bool:
    return any(
        row.get("name") is not None and is_final(row["name"], row.get("final")) for row in part.records
    )


def _join(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _is_iteration(folder: str) -> bool:
    number = folder[_NUMBER]
    return folder.startswith(_ITERATION) and number.isascii() and number.isdigit()


def _iterations(folders: list[str]) -> tuple[int, str]:
    """How many iterations the sorted folders are, and the one with the highest number."""
    first, after = bisect_left(folders, _ITERATION), bisect_left(folders, _AFTER_ITERATIONS)
    names = folders[first:after]
    if not _are_numbered(names):
        names = list(filter(_is_iteration, names))
    if not names:
        return 0, ""
    if len(set(map(len, names))) == 1:  # then they sort as their numbers do, and no number is there twice
        return len(names), names[-1]
    by_number = {int(name[_NUMBER]): name for name in names}
    return len(by_number), by_number[max(by_number)]


def _are_numbered(names: list[str]) -> bool:
    """Whether a number follows in each of the sorted names: all at once, as a run has many."""
    joined = "".join(names).encode(errors="replace")
    digits = joined.translate(None, _LETTERS)
    none_more = len(joined) - len(digits) == len(names) * len(_ITERATION)
    return none_more and digits.isdigit() and names[0] != _ITERATION


def _newest_of(files: Mapping[str, StorageStat]) -> _Newest | None:
    newest = None
    for path, stat in files.items():
        if newest is None or stat.mtime > newest[0]:
            newest = (stat.mtime, path)
    return None if newest is None else _Newest(*newest)
