"""Finding the runs of one or more storages, at the price of one folder scan a run."""

from __future__ import annotations

import difflib
import errno
import fnmatch
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, get_args

from runstore.errors import InvalidInputError, NotFoundError
from runstore.storage import Storage, as_storage, storage_join
from runstore.storage._base import run_sync_over
from runstore.storage._bridge import drive, gather, in_thread
from runstore.storage._paths import check_path
from runstore.storage._sync_only import SyncMethods
from runstore.storage._twins import show_twins
from runstore.stores._eval import RUNS_INDEX, EvalStore
from runstore.stores._run_info import RunInfo, Status, TrainingType
from runstore.stores._survey import Folder, Rules, survey
from runstore.stores._training import CHECKPOINTS, CONFIG, METRICS, TIMING, TrainingRunStore

__all__ = ["RunRegistry"]

P = ParamSpec("P")
T = TypeVar("T")

Source: TypeAlias = Storage | SyncMethods | str | os.PathLike[str]

logger = logging.getLogger("runstore")

NEAR_MATCHES = 3


class _Run(NamedTuple):
    """A run and where it is."""

    info: RunInfo
    storage: Storage


@show_twins
class RunRegistry:
    """The runs of one or more storages, and a store for each.

    A folder is a run when it holds `metrics.jsonl` or `config.json`. Runs are looked for in the root of
    each storage and `depth` levels of folders below it. Folders that cannot be runs (iterations,
    checkpoints, hidden ones) are never entered; links are followed, except back to a folder that they
    are in. A run that cannot be read is listed with its error.

    A refresh scans each run's folder once, many at a time, and reads only what changed since the
    last one. Where the run's own files are too old to count as running, the folder of its highest
    iteration is looked at too.

    A run's id is its path, `root` for a root that is a run itself. When two storages hold the same
    id, the later one becomes `<last part of that storage's URI>--<id>`. An id once given stays with
    its run, whatever is found, or does not answer, at a later refresh.

    A registry may be shared by threads, tasks and event loops, and pickled at any time.
    """

    def __init__(
        self,
        storages: Iterable[Source] | Source,
        eval_prefixes: Sequence[str] = ("eval", "eval_store", ""),
        *,
        depth: int = 1,
        active_seconds: float = 120.0,
        limit: int = 32,
    ) -> None:
        """Name the storages; nothing is read yet.

        Args:
            storages: Storages, paths or URIs, the first one being the primary; or one of these.
            eval_prefixes: Folders, of the root of each storage, in which an evaluation store is looked for.
            depth: Levels of folders below the root to look for runs in, from 0.
            active_seconds: A run is running while its newest change is no older than this.
            limit: Operations under way at once in each storage.

        Raises:
            InvalidInputError: There is no storage, or a number is out of range.
        """
        sources: list[Source]
        if isinstance(storages, str) or not isinstance(storages, Iterable):
            sources = [storages]
        else:
            sources = list(storages)
        if not sources or depth < 0 or limit < 1 or active_seconds < 0:
            msg = (
                "a registry needs at least one storage, depth >= 0, limit >= 1 and active_seconds >= 0, not "
                f"{len(sources)} storages, {depth=}, {limit=}, {active_seconds=}"
            )
            raise InvalidInputError(msg)
        self._storages = [as_storage(source) for source in sources]
        self._eval_prefixes = tuple(map(check_path, eval_prefixes))
        self._rules = Rules(depth, active_seconds, limit)
        self._folders: list[Mapping[str, Folder]] = [{} for _ in self._storages]
        self._ids: dict[str, tuple[int, str]] = {}
        self._runs: dict[str, _Run] | None = None
        self._errors: dict[str, Exception] = {}
        self._stores: dict[str, TrainingRunStore] = {}
        # Holds the evaluation store once it was looked for; each refresh ends with another list.
        self._eval_store: list[EvalStore | None] = []

    def __repr__(self) -> str:
        return f"RunRegistry({self._storages!r}, depth={self._rules.depth})"

    @property
    def storage_count(self) -> int:
        """How many storages there are."""
        return len(self._storages)

    @property
    def primary_storage(self) -> Storage:
        """The first storage."""
        return self._storages[0]

    @property
    def storage_errors(self) -> dict[str, Exception]:
        """The storages that did not answer the last refresh, by URL, and why."""
        return dict(self._errors)

    def storage_for(self, run_id: str) -> Storage:
        """The storage that holds a run.

        Raises:
            InvalidInputError: The id cannot be one.
            NotFoundError: No run has this id.
        """
        return self._run(self._find, run_id).storage

    async def arefresh(self) -> list[RunInfo]:
        """Look for runs again and forget the stores made so far.

        A storage that does not answer is logged and listed in `storage_errors`; its runs are left out.

        Returns:
            The runs, in the order of their storages, by path in each.

        Raises:
            RunStoreError: No storage answers.
        """
        answers = await gather([partial(self._survey, index) for index in range(len(self._storages))])
        errors = {
            self._storages[index].url(): answer
            for index, answer in enumerate(answers)
            if isinstance(answer, Exception)
        }
        if all(isinstance(answer, Exception) for answer in answers):
            raise next(iter(errors.values()))
        runs: dict[str, _Run] = {}
        for index, answer in enumerate(answers):
            if isinstance(answer, Exception):
                logger.warning("the runs of %s are left out: %s", self._storages[index].url(), answer)
                continue
            self._folders[index] = answer
            for prefix, folder in sorted(answer.items()):
                if folder.is_run or folder.failure is not None:
                    run_id = self._id_of(index, prefix)
                    runs[run_id] = _Run(_info_of(run_id, folder), self._storages[index])
        self._runs, self._errors, self._stores, self._eval_store = runs, errors, {}, []
        return [run.info for run in runs.values()]

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

        Raises:
            InvalidInputError: There is no such status or type.
        """
        _check_choice("status", status, get_args(Status))
        _check_choice("training_type", training_type, get_args(TrainingType))
        return [
            run.info
            for run in (await self._known_runs()).values()
            if fnmatch.fnmatchcase(run.info.run_id, pattern)
            and status in {None, run.info.status}
            and training_type in {None, run.info.training_type}
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
        self._check_id(run_id)
        run = (await self._known_runs()).get(run_id)
        return None if run is None else run.info

    def get_run(self, run_id: str) -> RunInfo | None:
        """Sync twin of `aget_run`."""
        return self._run(self.aget_run, run_id)

    async def aget_training_store(self, run_id: str) -> TrainingRunStore:
        """The store of a run, the same one until the next refresh.

        Raises:
            InvalidInputError: The id cannot be one.
            NotFoundError: No run has this id.
        """
        run = await self._find(run_id)
        stores = self._stores
        if run_id not in stores:
            stores.setdefault(run_id, TrainingRunStore(run.storage, run.info.prefix))
        return stores[run_id]

    def get_training_store(self, run_id: str) -> TrainingRunStore:
        """Sync twin of `aget_training_store`."""
        return self._run(self.aget_training_store, run_id)

    async def aget_eval_store(self) -> EvalStore | None:
        """The first evaluation store found under `eval_prefixes`, `None` when there is none.

        Looked for once between two refreshes.

        Raises:
            RunStoreError: None is found, and a storage that may hold one does not answer.
        """
        kept = self._eval_store
        if not kept:
            kept.append(await self._find_eval_store())
        return kept[0]

    def get_eval_store(self) -> EvalStore | None:
        """Sync twin of `aget_eval_store`."""
        return self._run(self.aget_eval_store)

    # ---- shared

    def _run(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync_over(self._storages, function, *args, **kwargs)

    async def _survey(self, index: int) -> Mapping[str, Folder] | Exception:
        """What a storage holds, or why it does not answer; one hop in all where files are local."""
        storage = self._storages[index]
        look = partial(survey, storage, self._rules, self._folders[index])
        try:
            return await (in_thread(drive, look) if storage.runs_in_place else look())
        except Exception as error:  # noqa: BLE001  whatever it is, the other storages have answers
            return error

    def _id_of(self, index: int, prefix: str) -> str:
        """The id of a run: what it was before, or its path if no other run has that."""
        run_id = prefix or "root"
        while self._ids.setdefault(run_id, (index, prefix)) != (index, prefix):
            run_id = f"{_last_part(self._storages[index])}--{run_id}"
        return run_id

    async def _known_runs(self) -> Mapping[str, _Run]:
        if self._runs is None:
            await self.arefresh()
        return self._runs or {}

    async def _find(self, run_id: str) -> _Run:
        self._check_id(run_id)
        runs = await self._known_runs()
        if run_id not in runs:
            near = difflib.get_close_matches(run_id, runs, NEAR_MATCHES)
            hint = (
                f"did you mean {', '.join(near)}?"
                if near
                else "refresh() looks for new ones, a larger depth further down"
            )
            msg = f"no run has the id {run_id!r}; {hint}"
            raise NotFoundError(errno.ENOENT, msg)
        return runs[run_id]

    def _check_id(self, run_id: str) -> None:
        """Refuse what can be no id, before any I/O."""
        if self._runs is not None and run_id in self._runs:
            return
        if "%2f" in run_id.lower() or ".." in run_id.split("/"):
            msg = f"{run_id!r} cannot be the id of a run: it escapes the storages"
            raise InvalidInputError(msg)
        check_path(run_id)

    async def _find_eval_store(self) -> EvalStore | None:
        failure: Exception | None = None
        for storage in self._storages:
            try:
                for prefix in self._eval_prefixes:
                    if await storage.aexists(storage_join(prefix, RUNS_INDEX)):
                        return EvalStore(storage, prefix)
            except Exception as error:  # noqa: BLE001  another storage may hold it
                failure = error
        if failure is not None:
            raise failure
        return None


def _check_choice(what: str, choice: str | None, choices: tuple[str, ...]) -> None:
    if choice is not None and choice not in choices:
        msg = f"{what} must be one of {', '.join(choices)}, not {choice!r}"
        raise InvalidInputError(msg)


def _last_part(storage: Storage) -> str:
    return storage.url().rstrip("/").rpartition("/")[2]


def _info_of(run_id: str, run: Folder) -> RunInfo:
    files = run.listing.files
    newest = run.newest
    return RunInfo(
        run_id,
        run.prefix,
        CONFIG in files,
        METRICS in files,
        CHECKPOINTS in files,
        TIMING in files,
        run.iterations[0],
        run.status,
        None if newest is None else newest.mtime,
        run.config.training_type,
        None if newest is None else newest.path,
        run.checked_at,
        run.error,
    )
