"""The folders of a run's iterations: rollout summaries and log trees."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from typing import Any

from runstore.errors import InvalidInputError, UnstorableValueError
from runstore.jsonl._decode import Record
from runstore.jsonl._encode import encode_object, encode_record
from runstore.jsonl._scan import read_records
from runstore.storage import Storage, StorageListing, storage_join
from runstore.storage._bridge import breathe
from runstore.storage._paths import check_name
from runstore.storage._sync_only import SyncMethods
from runstore.storage._twins import show_twins
from runstore.stores._records import IterationInfo
from runstore.stores._rollouts import RolloutCache
from runstore.stores._run_files import RunFiles

__all__ = ["IterationFiles"]

ROLLOUTS_SUFFIX = "_rollout_summaries.jsonl"
LOGTREE_SUFFIX = "_logtree.json"

# Bytes of rollouts that are encoded before an event loop gets its turn.
ENCODED_AT_A_STRETCH = 256 * 1024

_ITERATION = re.compile(r"iteration_([0-9]+)")
_EVAL_ROLLOUTS = re.compile(rf"eval_([^/]+){re.escape(ROLLOUTS_SUFFIX)}")


def iteration_folder(iteration: int) -> str:
    """Name of an iteration's folder.

    Raises:
        InvalidInputError: The number is negative.
        TypeError: It is no integer.
    """
    try:
        number = operator.index(iteration)
    except TypeError as error:
        msg = f"iteration must be an integer, not {iteration!r}"
        raise TypeError(msg) from error
    if number < 0:
        msg = f"iteration must not be negative: {iteration}"
        raise InvalidInputError(msg)
    return f"iteration_{number:06d}"


@show_twins
class IterationFiles(RunFiles):
    """The part of a run's store that is about iterations."""

    def __init__(self, storage: Storage | SyncMethods | str | os.PathLike[str], prefix: str = "") -> None:
        super().__init__(storage, prefix)
        self._rollouts = RolloutCache()

    async def alist_iterations(self) -> list[IterationInfo]:
        """The iterations that have a folder, by number, with what lies directly in it."""
        found: dict[int, IterationInfo] = {}
        listing = await self.storage.ascan(self._path()) if self.storage.keeps_folders else StorageListing()
        for folder in listing.folders:
            if match := _ITERATION.fullmatch(folder):
                found.setdefault(int(match[1]), IterationInfo(int(match[1])))
        for path in await self.storage.afind(self._path(), "iteration_", depth=2):
            folder, _, name = path.partition("/")
            match = _ITERATION.fullmatch(folder)
            if match and name:
                _note_file(found.setdefault(int(match[1]), IterationInfo(int(match[1]))), name)
        for info in found.values():
            info.eval_labels = sorted(set(info.eval_labels))
        return [found[number] for number in sorted(found)]

    def list_iterations(self) -> list[IterationInfo]:
        """Sync twin of `alist_iterations`."""
        return self.storage.run_sync(self.alist_iterations)

    async def aread_rollouts(self, iteration: int, base_name: str = "train") -> list[Record]:
        """The rollout summaries of an iteration, `[]` when there are none.

        Kept while the file is unchanged: the same list comes back.

        Args:
            iteration: Number of the iteration.
            base_name: What the file's name begins with: `train`, `eval_gsm8k` …

        Raises:
            InvalidInputError: A negative number, or a name that is no part of a file name.
        """
        return await self._rollouts.read(self.storage, self._rollouts_path(iteration, base_name))

    def read_rollouts(self, iteration: int, base_name: str = "train") -> list[Record]:
        """Sync twin of `aread_rollouts`."""
        return self.storage.run_sync(self.aread_rollouts, iteration, base_name)

    async def aread_single_rollout(
        self, iteration: int, group_idx: int, traj_idx: int, base_name: str = "train"
    ) -> Record | None:
        """One rollout, or `None`; reading stops when it is found.

        Args:
            iteration: Number of the iteration.
            group_idx: Its `group_idx`.
            traj_idx: Its `traj_idx`.
            base_name: What the file's name begins with: `train`, `eval_gsm8k` …

        Raises:
            InvalidInputError: A negative number, or a name that is no part of a file name.
        """
        async with contextlib.aclosing(self.aiter_rollouts(iteration, base_name)) as records:
            async for record in records:
                if record.get("group_idx") == group_idx and record.get("traj_idx") == traj_idx:
                    return record
        return None

    def read_single_rollout(
        self, iteration: int, group_idx: int, traj_idx: int, base_name: str = "train"
    ) -> Record | None:
        """Sync twin of `aread_single_rollout`."""
        return self.storage.run_sync(self.aread_single_rollout, iteration, group_idx, traj_idx, base_name)

    def aiter_rollouts(self, iteration: int, base_name: str = "train") -> AsyncGenerator[Record]:
        """The rollouts of an iteration one by one, with a piece of the file in memory at a time.

        Nothing is kept. Whoever leaves before the end should close it: `contextlib.aclosing`, or
        `contextlib.closing` for the sync twin.

        Args:
            iteration: Number of the iteration.
            base_name: What the file's name begins with: `train`, `eval_gsm8k` …

        Raises:
            InvalidInputError: A negative number, or a name that is no part of a file name.
        """
        return self._each_rollout(self._rollouts_path(iteration, base_name))

    def iter_rollouts(self, iteration: int, base_name: str = "train") -> Generator[Record]:
        """Sync twin of `aiter_rollouts`."""
        return self._each_rollout_in_turn(self._rollouts_path(iteration, base_name))

    async def _each_rollout(self, path: str) -> AsyncGenerator[Record]:
        async with contextlib.aclosing(read_records(self.storage, path)) as parts:
            async for records in parts:
                for record in records:
                    yield record

    def _each_rollout_in_turn(self, path: str) -> Generator[Record]:
        parts = read_records(self.storage, path)
        try:
            while (records := self.storage.run_sync(_next_of, parts)) is not None:
                yield from records
        finally:
            self.storage.run_sync(parts.aclose)

    async def awrite_rollouts(
        self, iteration: int, records: Iterable[Mapping[str, Any]], base_name: str = "train"
    ) -> None:
        """Replace the rollout summaries of an iteration.

        Args:
            iteration: Number of the iteration.
            records: One object a trajectory.
            base_name: What the file's name begins with: `train`, `eval_gsm8k` …

        Raises:
            InvalidInputError: A negative number, or a name that is no part of a file name.
            UnstorableValueError: A value has no JSON form; nothing was written.
        """
        path = self._rollouts_path(iteration, base_name)
        if isinstance(records, Mapping) or not isinstance(records, Iterable):
            msg = f"rollouts must be a list of records, not {type(records).__qualname__}"
            raise UnstorableValueError(msg)
        lines: list[bytes] = []
        unbroken = 0
        for record in records:
            lines.append(encode_record(record))
            unbroken += len(lines[-1])
            if unbroken > ENCODED_AT_A_STRETCH:
                unbroken = 0
                await breathe()
        await self.storage.awrite(path, b"".join(lines))
        self._rollouts.forget(path)

    def write_rollouts(
        self, iteration: int, records: Iterable[Mapping[str, Any]], base_name: str = "train"
    ) -> None:
        """Sync twin of `awrite_rollouts`."""
        return self.storage.run_sync(self.awrite_rollouts, iteration, records, base_name)

    async def alist_logtrees(self, iteration: int) -> list[str]:
        """Base names of an iteration's log trees, sorted: `["eval_gsm8k", "train"]`."""
        names = await self.storage.alist_dir(self._path(iteration_folder(iteration)))
        bases = [name.removesuffix(LOGTREE_SUFFIX) for name in names if name.endswith(LOGTREE_SUFFIX)]
        return sorted(base for base in bases if base)

    def list_logtrees(self, iteration: int) -> list[str]:
        """Sync twin of `alist_logtrees`."""
        return self.storage.run_sync(self.alist_logtrees, iteration)

    async def aread_logtree(self, iteration: int, base_name: str = "train") -> Record | None:
        """A log tree, or `None` when there is none.

        Raises:
            InvalidInputError: A negative number, or a name that is no part of a file name.
            MalformedFileError: The file cannot be read as a JSON object.
        """
        return await self._read_document(self._logtree_name(iteration, base_name))

    def read_logtree(self, iteration: int, base_name: str = "train") -> Record | None:
        """Sync twin of `aread_logtree`."""
        return self.storage.run_sync(self.aread_logtree, iteration, base_name)

    async def awrite_logtree(self, iteration: int, data: Mapping[str, Any], base_name: str = "train") -> None:
        """Replace a log tree.

        Args:
            iteration: Number of the iteration.
            data: The tree; values of any kind become readable ones.
            base_name: What the file's name begins with: `train`, `eval_gsm8k` …

        Raises:
            InvalidInputError: A negative number, or a name that is no part of a file name.
            UnstorableValueError: It makes no object, or a value holds itself.
        """
        name = self._logtree_name(iteration, base_name)
        await self.storage.awrite(self._path(name), encode_object("a log tree", data))

    def write_logtree(self, iteration: int, data: Mapping[str, Any], base_name: str = "train") -> None:
        """Sync twin of `awrite_logtree`."""
        return self.storage.run_sync(self.awrite_logtree, iteration, data, base_name)

    def _rollouts_path(self, iteration: int, base_name: str) -> str:
        name = check_name("base_name", base_name) + ROLLOUTS_SUFFIX
        return self._path(iteration_folder(iteration), name)

    @staticmethod
    def _logtree_name(iteration: int, base_name: str) -> str:
        return storage_join(iteration_folder(iteration), check_name("base_name", base_name) + LOGTREE_SUFFIX)


async def _next_of(parts: AsyncGenerator[list[Record]]) -> list[Record] | None:
    return await anext(parts, None)


def _note_file(info: IterationInfo, name: str) -> None:
    if name == f"train{ROLLOUTS_SUFFIX}":
        info.has_train_rollouts = True
    elif name == f"train{LOGTREE_SUFFIX}":
        info.has_train_logtree = True
    elif match := _EVAL_ROLLOUTS.fullmatch(name):
        info.eval_labels.append(match[1])
