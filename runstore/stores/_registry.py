"""Finding the runs of one or more storages, at the price of one folder scan a run."""

from __future__ import annotations

import difflib
import errno
import fnmatch
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

from runstore.errors import InvalidInputError, NotFoundError, RunStoreError
from runstore.jsonl import IncrementalReader
from runstore.jsonl._decode import decode_document
from runstore.storage import Storage, StorageEntry, StorageStat, as_storage, storage_join
from runstore.storage._base import run_sync_over
from runstore.storage._bridge import gather
from runstore.storage._paths import check_path
from runstore.stores._eval import RUNS_INDEX, EvalStore
from runstore.stores._training import CHECKPOINTS, CONFIG, METRICS, TIMING, TrainingRunStore

__all__ = ["RunInfo", "RunRegistry"]

P = ParamSpec("P")
T = TypeVar("T")

Status = Literal["running", "completed", "idle"]
TrainingType = Literal["rl", "sl", "dpo"]

_ITERATION = "iteration_"
# Folders inside a run, or of tools: never runs, and some hold thousands of files.
_NEVER_RUNS = {"checkpoints", "weights", "wandb", "tensorboard", "__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run without reading its metrics.

    Attributes:
        run_id: Its name in the registry.
        prefix: Its folder in its storage.
        has_config: Whether `config.json` is there.
        has_metrics: Whether `metrics.jsonl` is there.
        has_checkpoints: Whether `checkpoints.jsonl` is there.
        has_timing: Whether `timing_spans.jsonl` is there.
        iteration_count: How many iteration folders there are.
        status: `completed` with a final checkpoint; `running` when a file changed within the
            registry's window; else `idle`.
        last_updated: Time of the newest change seen, in seconds since the epoch; `None` without files.
        training_type: `rl`, `sl` or `dpo`, as the configuration tells; `None` when it does not.
        status_reason: What the status was decided by: a file and its age, or the final checkpoint.
        error: What could not be read, `None` for a sound run.
    """

    run_id: str
    prefix: str
    has_config: bool
    has_metrics: bool
    has_checkpoints: bool
    has_timing: bool
    iteration_count: int
    status: Status
    last_updated: float | None
    training_type: TrainingType | None
    status_reason: str = ""
    error: str | None = None


class _Newest(NamedTuple):
    """The newest file seen."""

    mtime: float
    path: str


@dataclass(slots=True)
class _Known:
    """What reading a run's files told, good while those files are the same."""

    files: tuple[StorageStat | None, ...]
    training_type: TrainingType | None = None
    final: bool = False
    error: str | None = None
    iteration: str = ""
    iteration_newest: _Newest | None = None
    looked_at: float = 0.0


class _Found:
    """A folder as the scan of its storage found it."""

    def __init__(
        self, storage: int, prefix: str, entries: tuple[StorageEntry, ...], error: str | None = None
    ) -> None:
        self.storage = storage
        self.prefix = prefix
        self.run_id = ""
        self.error = error
        self.known: _Known | None = None
        self.files = {entry.path: entry.stat for entry in entries if entry.stat is not None}
        self.folders = [entry.path for entry in entries if entry.stat is None]
        self.iterations = [folder for folder in self.folders if _is_iteration(folder)]

    @property
    def key(self) -> tuple[int, str]:
        return self.storage, self.prefix

    @property
    def is_run(self) -> bool:
        return METRICS in self.files or CONFIG in self.files

    def read_files(self) -> tuple[StorageStat | None, ...]:
        """Size and age of the files that are read for a run's info."""
        return self.files.get(CONFIG), self.files.get(CHECKPOINTS)

    def newest(self) -> _Newest | None:
        return _newest_of(self.files)

    def candidates(self) -> list[str]:
        """The folders below that may be runs or hold some."""
        return [
            storage_join(self.prefix, folder)
            for folder in self.folders
            if not folder.startswith(".") and folder not in _NEVER_RUNS and not _is_iteration(folder)
        ]


class RunRegistry:
    """The runs of one or more storages, and a store for each.

    A folder is a run when it holds `metrics.jsonl` or `config.json`. Runs are looked for in the root of
    each storage and `depth` levels of folders below it; folders that cannot be runs (iterations,
    checkpoints, hidden ones) are never entered. A run that cannot be read is listed with its error.

    A refresh scans each run's folder once, many at a time, and reads only what changed since the
    last one. A root that is itself a run has the id `root`, one further down its path. When two
    storages hold the same id, the later one becomes `<last part of that storage's URI>--<id>`.
    """

    def __init__(
        self,
        storages: Iterable[Storage | str],
        eval_prefixes: Sequence[str] = ("eval", "eval_store", ""),
        *,
        depth: int = 1,
        active_seconds: float = 120.0,
        limit: int = 32,
    ) -> None:
        """Name the storages; nothing is read yet.

        Args:
            storages: Storages, paths or URIs, the first one being the primary.
            eval_prefixes: Folders in which an evaluation store is looked for.
            depth: Levels of folders below the root to look for runs in, from 0.
            active_seconds: A run is running while its newest change is no older than this.
            limit: Operations under way at once in each storage.

        Raises:
            InvalidInputError: There is no storage, or a number is out of range.
        """
        sources = [storages] if isinstance(storages, str) else list(storages)
        if not sources or depth < 0 or limit < 1 or active_seconds < 0:
            msg = (
                "a registry needs at least one storage, depth >= 0, limit >= 1 and active_seconds >= 0, not "
                f"{len(sources)} storages, {depth=}, {limit=}, {active_seconds=}"
            )
            raise InvalidInputError(msg)
        self._storages = [as_storage(source) for source in sources]
        self._eval_prefixes = tuple(eval_prefixes)
        self._depth = depth
        self._active_seconds = active_seconds
        self._limit = limit
        self._runs: dict[str, RunInfo] | None = None
        self._owners: dict[str, Storage] = {}
        self._known: dict[tuple[int, str], _Known] = {}
        self._stores: dict[str, TrainingRunStore] = {}
        self._eval_store: EvalStore | None = None
        self._eval_looked_for = False

    @property
    def storage_count(self) -> int:
        """How many storages there are."""
        return len(self._storages)

    @property
    def primary_storage(self) -> Storage:
        """The first storage."""
        return self._storages[0]

    def storage_for(self, run_id: str) -> Storage:
        """The storage that holds a run.

        Raises:
            InvalidInputError: The id cannot be one.
            NotFoundError: No run has this id.
        """
        self._check_known(run_id, self.get_run(run_id))
        return self._owners[run_id]

    async def arefresh(self) -> list[RunInfo]:
        """Look for runs again and forget the stores made so far.

        Returns:
            The runs, in the order of their storages, by path in each.

        Raises:
            RunStoreError: A storage's root cannot be listed.
        """
        found = await gather([partial(self._discover, index) for index in range(len(self._storages))])
        named = _with_distinct_ids(self._storages, found)
        infos = await gather([partial(self._describe, run) for run in named], self._limit)
        self._known = {run.key: run.known for run in named if run.known is not None}
        self._owners = {run.run_id: self._storages[run.storage] for run in named}
        self._runs = {info.run_id: info for info in infos}
        self._stores = {}
        self._eval_looked_for = False
        return infos

    def refresh(self) -> list[RunInfo]:
        """Sync twin of `arefresh`."""
        return self._run(self.arefresh)

    async def aget_runs(
        self,
        pattern: str = "*",
        *,
        status: Status | None = None,
        training_type: TrainingType | None = None,
    ) -> list[RunInfo]:
        """The runs found by the last refresh, which the first call makes.

        Args:
            pattern: Glob that the id must match; `*` matches slashes too.
            status: Only runs of this status.
            training_type: Only runs of this type.
        """
        runs = self._runs
        if runs is None:
            await self.arefresh()
            runs = self._runs or {}
        return [
            run
            for run in runs.values()
            if fnmatch.fnmatchcase(run.run_id, pattern)
            and status in {None, run.status}
            and training_type in {None, run.training_type}
        ]

    def get_runs(
        self,
        pattern: str = "*",
        *,
        status: Status | None = None,
        training_type: TrainingType | None = None,
    ) -> list[RunInfo]:
        """Sync twin of `aget_runs`."""
        return self._run(self.aget_runs, pattern, status=status, training_type=training_type)

    async def aget_run(self, run_id: str) -> RunInfo | None:
        """A run by its id, `None` when there is none.

        Raises:
            InvalidInputError: The id cannot be one.
        """
        _check_id(run_id)
        await self.aget_runs()
        return (self._runs or {}).get(run_id)

    def get_run(self, run_id: str) -> RunInfo | None:
        """Sync twin of `aget_run`."""
        return self._run(self.aget_run, run_id)

    async def aget_training_store(self, run_id: str) -> TrainingRunStore:
        """The store of a run, the same one until the next refresh.

        Raises:
            InvalidInputError: The id cannot be one.
            NotFoundError: No run has this id.
        """
        run = self._check_known(run_id, await self.aget_run(run_id))
        store = self._stores.get(run_id)
        if store is None:
            store = self._stores.setdefault(run_id, TrainingRunStore(self._owners[run_id], run.prefix))
        return store

    def get_training_store(self, run_id: str) -> TrainingRunStore:
        """Sync twin of `aget_training_store`."""
        return self._run(self.aget_training_store, run_id)

    async def aget_eval_store(self) -> EvalStore | None:
        """The first evaluation store found under `eval_prefixes`, `None` when there is none."""
        if not self._eval_looked_for:
            self._eval_store = await self._find_eval_store()
            self._eval_looked_for = True
        return self._eval_store

    def get_eval_store(self) -> EvalStore | None:
        """Sync twin of `aget_eval_store`."""
        return self._run(self.aget_eval_store)

    def _run(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync_over(self._storages, function, *args, **kwargs)

    def _check_known(self, run_id: str, run: RunInfo | None) -> RunInfo:
        if run is None:
            known = difflib.get_close_matches(run_id, self._runs or {}, n=3)
            hint = f"did you mean {', '.join(known)}?" if known else "refresh() looks for new ones"
            msg = f"no run has the id {run_id!r}; {hint}"
            raise NotFoundError(errno.ENOENT, msg)
        return run

    async def _find_eval_store(self) -> EvalStore | None:
        for storage in self._storages:
            for prefix in self._eval_prefixes:
                if await storage.aexists(storage_join(prefix, RUNS_INDEX)):
                    return EvalStore(storage, prefix)
        return None

    async def _discover(self, index: int) -> list[_Found]:
        """The run folders of one storage, by path."""
        storage = self._storages[index]
        found: list[_Found] = []
        level = [_Found(index, "", tuple(await storage.ascan("")))]
        for depth in range(self._depth + 1):
            found += [folder for folder in level if folder.is_run or folder.error]
            if depth < self._depth:
                below = [path for folder in level for path in folder.candidates()]
                level = await gather([partial(_scan, storage, index, path) for path in below], self._limit)
        return sorted(found, key=lambda folder: folder.prefix)

    async def _describe(self, run: _Found) -> RunInfo:
        """A run's info, reading what changed since the last refresh."""
        storage = self._storages[run.storage]
        known = self._known.get(run.key)
        if known is None or known.files != run.read_files():
            known = await _read(storage, run)
        run.known = known
        newest = run.newest()
        if not known.final and run.iterations and not self._is_fresh(newest):
            newest = _newer(newest, await self._newest_of_iteration(storage, run, known))
        status, reason = self._judge(known, newest)
        return RunInfo(
            run_id=run.run_id,
            prefix=run.prefix,
            has_config=CONFIG in run.files,
            has_metrics=METRICS in run.files,
            has_checkpoints=CHECKPOINTS in run.files,
            has_timing=TIMING in run.files,
            iteration_count=len(run.iterations),
            status=status,
            last_updated=None if newest is None else newest.mtime,
            training_type=known.training_type,
            status_reason=reason,
            error=run.error or known.error,
        )

    def _judge(self, known: _Known, newest: _Newest | None) -> tuple[Status, str]:
        if known.final:
            return "completed", "it has a final checkpoint"
        if newest is None:
            return "idle", "it has no files"
        reason = f"{newest.path} changed {_age(newest):.0f} s ago"
        return ("running" if self._is_fresh(newest) else "idle"), reason

    def _is_fresh(self, newest: _Newest | None) -> bool:
        return newest is not None and _age(newest) <= self._active_seconds

    async def _newest_of_iteration(self, storage: Storage, run: _Found, known: _Known) -> _Newest | None:
        """The newest file of the highest iteration; looked at anew once the last look is that old."""
        folder = max(run.iterations, key=_number)
        now = time.monotonic()
        if known.iteration != folder or now - known.looked_at > self._active_seconds:
            entries = await storage.ascan(storage_join(run.prefix, folder))
            files = {f"{folder}/{entry.path}": entry.stat for entry in entries if entry.stat is not None}
            known.iteration, known.looked_at, known.iteration_newest = folder, now, _newest_of(files)
        return known.iteration_newest


async def _scan(storage: Storage, index: int, path: str) -> _Found:
    try:
        return _Found(index, path, tuple(await storage.ascan(path)))
    except (RunStoreError, OSError) as error:
        return _Found(index, path, (), str(error))


async def _read(storage: Storage, run: _Found) -> _Known:
    """What the configuration and the checkpoints of a run tell."""
    known = _Known(run.read_files())
    try:
        if CONFIG in run.files:
            path = storage_join(run.prefix, CONFIG)
            known.training_type = _training_type(
                decode_document(await storage.aread(path), storage.url(path))
            )
    except (RunStoreError, OSError) as error:
        known.error = str(error)
    try:
        if CHECKPOINTS in run.files:
            path = storage_join(run.prefix, CHECKPOINTS)
            reader = IncrementalReader(storage, path, max_records=sys.maxsize)
            rows = await reader.aread()
            known.final = any(row.get("final") or row.get("name") == "final" for row in rows)
            if reader.malformed.count:
                known.error = f"{storage.url(path)} has {reader.malformed.count} malformed line(s)"
    except (RunStoreError, OSError) as error:
        known.error = str(error)
    return known


def _training_type(config: dict[str, Any]) -> TrainingType | None:
    by_key: dict[str, TrainingType] = {"dpo_beta": "dpo", "loss_fn": "rl", "num_epochs": "sl"}
    for key, kind in by_key.items():
        if key in config:
            return kind
    builder = config.get("dataset_builder")
    name = str(builder.get("__type__", "")) if isinstance(builder, dict) else ""
    if "RL" in name:
        return "rl"
    return "sl" if "Supervised" in name or "SL" in name else None


def _with_distinct_ids(storages: list[Storage], found: list[list[_Found]]) -> list[_Found]:
    taken: set[str] = set()
    runs = [run for of_storage in found for run in of_storage]
    for run in runs:
        source = storages[run.storage].url().rstrip("/").rpartition("/")[2]
        run.run_id = run.prefix or "root"
        while run.run_id in taken:
            run.run_id = f"{source}--{run.run_id}"
        taken.add(run.run_id)
    return runs


def _check_id(run_id: str) -> None:
    """Refuse what can be no id, before any I/O."""
    if not run_id or "%2f" in run_id.lower() or run_id != check_path(run_id):
        msg = f"{run_id!r} cannot be the id of a run: ids are relative paths in normal form"
        raise InvalidInputError(msg)


def _is_iteration(folder: str) -> bool:
    return folder.startswith(_ITERATION) and folder[len(_ITERATION) :].isdecimal()


def _number(folder: str) -> int:
    return int(folder[len(_ITERATION) :])


def _is_iteration(folder: str) -> bool:
    return folder.startswith(_ITERATION) and folder[len(_ITERATION) :].isdecimal()


def _number(folder: str) -> int:
    return int(folder[len(_ITERATION) :])


def _newest_of(files: dict[str, StorageStat]) -> _Newest | None:
    return max((_Newest(stat.mtime, path) for path, stat in files.items()), default=None)


def _newer(one: _Newest | None, other: _Newest | None) -> _Newest | None:
    return max((newest for newest in (one, other) if newest is not None), default=None)


def _age(newest: _Newest) -> float:
    """Seconds since a change; a storage whose clock is ahead gives no negative age."""
    return max(time.time() - newest.mtime, 0.0)
