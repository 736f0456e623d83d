"""One training run: what its files are called, and what they hold."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runstore.errors import InvalidInputError, NotFoundError, UnstorableValueError
from runstore.jsonl import AsyncFollower, Batch, Follower, IncrementalReader
from runstore.jsonl._decode import Record, decode_document
from runstore.jsonl._encode import encode_document, encode_record
from runstore.jsonl._scan import read_records
from runstore.storage import Storage, as_storage, storage_join
from runstore.storage._bridge import breathe
from runstore.storage._paths import check_name
from runstore.stores._records import CheckpointRecord, IterationInfo
from runstore.stores._rollouts import RolloutCache
from runstore.stores._truncate import truncate_metrics

__all__ = ["TrainingRunStore"]

logger = logging.getLogger("runstore")

CONFIG = "config.json"
METRICS = "metrics.jsonl"
TIMING = "timing_spans.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
CODE_DIFF = "code.diff"
ROLLOUTS_SUFFIX = "_rollout_summaries.jsonl"
LOGTREE_SUFFIX = "_logtree.json"

# A timing record of an RL run is about 95 KB, so a bound on records alone would be none on memory.
TIMING_BUFFER_BYTES = 256 * 1024 * 1024

# Bytes of rollouts that are encoded before an event loop gets its turn.
ENCODED_AT_A_STRETCH = 256 * 1024

_ITERATION = re.compile(r"iteration_([0-9]+)")


def iteration_folder(iteration: int) -> str:
    """Name of an iteration's folder.

    Raises:
        InvalidInputError: The number is negative.
    """
    if iteration < 0:
        msg = f"iteration must not be negative: {iteration}"
        raise InvalidInputError(msg)
    return f"iteration_{iteration:06d}"


class TrainingRunStore:
    """Reads, writes and follows the files of one training run.

    Every method exists twice: an async one with the prefix `a`, and its sync twin without. It may be
    pickled at any time, and shared by threads, tasks and event loops.

    Numbers that are not finite are stored as the tokens `NaN`, `Infinity` and `-Infinity`, which
    Python's `json` reads. A value that has no JSON form raises `UnstorableValueError`, a `TypeError`
    naming its key path, before anything is written; configurations and log trees take any value.
    """

    def __init__(self, storage: Storage | str | os.PathLike[str], prefix: str = "") -> None:
        """Open a run; nothing is read or created yet.

        Args:
            storage: Where runs are kept: a storage, a path or a URI.
            prefix: The run's folder in it; the root itself when empty.

        Raises:
            InvalidInputError: A URI that cannot be right.
        """
        self.storage = as_storage(storage)
        self.prefix = prefix
        self._metrics = IncrementalReader(self.storage, self._path(METRICS))
        self._timing = IncrementalReader(self.storage, self._path(TIMING), max_bytes=TIMING_BUFFER_BYTES)
        self._config: Record | None = None
        self._rollouts = RolloutCache()

    def __repr__(self) -> str:
        return f"TrainingRunStore({self.storage!r}, {self.prefix!r})"

    def url(self, path: str = "") -> str:
        """URI of a path in this run."""
        return self.storage.url(self._path(path))

    def _path(self, *parts: str) -> str:
        return storage_join(self.prefix, *parts)

    # ---- configuration

    async def aread_config(self) -> Record | None:
        """The configuration, or `None` when there is none yet.

        Kept after the first time: the same object comes back.

        Raises:
            MalformedFileError: The file cannot be read as a JSON object.
        """
        if self._config is None:
            self._config = await self._read_document(CONFIG)
        return self._config

    def read_config(self) -> Record | None:
        """Sync twin of `aread_config`."""
        return self.storage.run_sync(self.aread_config)

    async def awrite_config(self, config: Any) -> None:
        """Replace the configuration.

        Args:
            config: A dict, or an object whose fields make one: dataclass, pydantic model, Namespace.
                Paths, enums, sets, bytes, dates, functions … become readable values.

        Raises:
            UnstorableValueError: A value holds itself, or the whole makes no object.
        """
        data = encode_document(config)
        if not data.startswith(b"{"):
            msg = f"a configuration must make a JSON object, and a {type(config).__qualname__} does not"
            raise UnstorableValueError(msg)
        await self.storage.awrite(self._path(CONFIG), data)
        self._config = decode_document(data, self.url(CONFIG))

    def write_config(self, config: Any) -> None:
        """Sync twin of `awrite_config`."""
        return self.storage.run_sync(self.awrite_config, config)

    # ---- metrics

    async def aread_metrics(self) -> list[Record]:
        """The buffered metrics, the newest 50,000 records at most; only what is new is fetched."""
        await self._metrics.aread()
        return self._metrics.records

    def read_metrics(self) -> list[Record]:
        """Sync twin of `aread_metrics`."""
        return self.storage.run_sync(self.aread_metrics)

    async def aread_new_metrics(self) -> list[Record]:
        """The metrics that came since the last read through this store, however many."""
        return await self._metrics.aread()

    def read_new_metrics(self) -> list[Record]:
        """Sync twin of `aread_new_metrics`."""
        return self.storage.run_sync(self.aread_new_metrics)

    def metric_keys(self) -> set[str]:
        """Every key seen in the metrics read so far, except `step`."""
        return self._metrics.known_keys

    def metrics_cursor(self) -> str:
        """The position after the last record read through this store, for a store with one consumer."""
        return self._metrics.cursor

    async def asnapshot_metrics(self) -> Batch:
        """The buffered metrics and the position after them, taken in one step.

        A follower that starts from the batch's cursor misses and repeats nothing, however many
        share this store.
        """
        await self._metrics.aread()
        return self._metrics.snapshot()

    def snapshot_metrics(self) -> Batch:
        """Sync twin of `asnapshot_metrics`."""
        return self.storage.run_sync(self.asnapshot_metrics)

    def afollow_metrics(self, *, cursor: str | None = None, interval: float = 0.25) -> AsyncFollower:
        """Metrics as they are written: an async iterator of batches.

        Args:
            cursor: Where to begin: `None` for the first record, `"end"` for what comes from now on,
                or the cursor of a batch or of `metrics_cursor()`. A cursor into a file that was
                replaced since gives a batch with `reset` set, and that file from its start.
            interval: Seconds between looks at the storage; on a local disk a change is seen within
                tens of milliseconds all the same.

        Raises:
            InvalidInputError: The cursor is none, or the interval is not positive.
        """
        return AsyncFollower(self.storage, self._path(METRICS), cursor, interval)

    def follow_metrics(self, *, cursor: str | None = None, interval: float = 0.25) -> Follower:
        """Sync twin of `afollow_metrics`."""
        return Follower(self.storage, self._path(METRICS), cursor, interval)

    async def awrite_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one record: `{"step": step, **metrics}` when a step is given, else `metrics`.

        Args:
            metrics: Names and values; numbers of numpy, torch and the like are taken.
            step: Training step.

        Raises:
            UnstorableValueError: A value has no JSON form; nothing was written.
        """
        record = metrics if step is None else {"step": step, **metrics}
        await self._append(METRICS, record)

    def write_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Sync twin of `awrite_metrics`."""
        return self.storage.run_sync(self.awrite_metrics, metrics, step)

    async def atruncate_metrics(self, from_step: int) -> int:
        """Drop the metrics of steps that a resumed run will do again.

        Rows with an integer `step >= from_step` go; all others and unreadable lines stay. Before,
        the file is copied unchanged to `metrics.jsonl.pre_resume_<from_step>` (six digits; `.1`,
        `.2` … are added rather than overwriting an earlier copy). Nobody else may be appending.

        Args:
            from_step: First step to drop.

        Returns:
            How many rows were dropped; with none, nothing is copied or changed.
        """
        return await truncate_metrics(self.storage, self._path(METRICS), from_step)

    def truncate_metrics(self, from_step: int) -> int:
        """Sync twin of `atruncate_metrics`."""
        return self.storage.run_sync(self.atruncate_metrics, from_step)

    # ---- timing

    async def aread_timing(self) -> list[Record]:
        """The buffered timing records, `{"step": …, "spans": […]}`; only what is new is fetched.

        The buffer keeps the newest 50,000 records, of 256 MB of the file at most.
        """
        await self._timing.aread()
        return self._timing.records

    def read_timing(self) -> list[Record]:
        """Sync twin of `aread_timing`."""
        return self.storage.run_sync(self.aread_timing)

    def afollow_timing(self, *, cursor: str | None = None, interval: float = 0.25) -> AsyncFollower:
        """Timing records as they are written; see `afollow_metrics`."""
        return AsyncFollower(self.storage, self._path(TIMING), cursor, interval)

    def follow_timing(self, *, cursor: str | None = None, interval: float = 0.25) -> Follower:
        """Sync twin of `afollow_timing`."""
        return Follower(self.storage, self._path(TIMING), cursor, interval)

    async def awrite_timing_spans(self, step: int, spans: Sequence[Mapping[str, Any]]) -> None:
        """Append the spans of one step as one record; nothing for an empty list.

        Args:
            step: Training step.
            spans: Objects with `name`, `duration` (seconds), `wall_start` and `wall_end` (seconds
                since the epoch).

        Raises:
            UnstorableValueError: A value has no JSON form; nothing was written.
        """
        if spans:
            await self._append(TIMING, {"step": step, "spans": spans})

    def write_timing_spans(self, step: int, spans: Sequence[Mapping[str, Any]]) -> None:
        """Sync twin of `awrite_timing_spans`."""
        return self.storage.run_sync(self.awrite_timing_spans, step, spans)

    # ---- checkpoints

    async def aread_checkpoints(self) -> list[Record]:
        """The rows of `checkpoints.jsonl`, in file order."""
        return await self._read_all(self._path(CHECKPOINTS))

    def read_checkpoints(self) -> list[Record]:
        """Sync twin of `aread_checkpoints`."""
        return self.storage.run_sync(self.aread_checkpoints)

    async def aread_checkpoint_records(self) -> list[CheckpointRecord]:
        """The rows of `checkpoints.jsonl` as records; a row without a name is skipped and logged."""
        rows = await self.aread_checkpoints()
        nameless = sum("name" not in row for row in rows)
        if nameless:
            logger.warning("%s: skipped %d row(s) without a name", self.url(CHECKPOINTS), nameless)
        return [CheckpointRecord.from_dict(row) for row in rows if "name" in row]

    def read_checkpoint_records(self) -> list[CheckpointRecord]:
        """Sync twin of `aread_checkpoint_records`."""
        return self.storage.run_sync(self.aread_checkpoint_records)

    async def awrite_checkpoint(self, record: CheckpointRecord | Mapping[str, Any]) -> None:
        """Append one checkpoint; it is durable in the backend when this returns.

        Args:
            record: A `CheckpointRecord`, or a dict with at least a `name`.

        Raises:
            InvalidInputError: There is no name.
            UnstorableValueError: A value has no JSON form; nothing was written.
        """
        row = record.to_dict() if isinstance(record, CheckpointRecord) else record
        if row.get("name") is None:
            msg = f"a checkpoint must be an object with a 'name': {row!r:.200}"
            raise InvalidInputError(msg)
        await self._append(CHECKPOINTS, row)
        await self.storage.aflush()

    def write_checkpoint(self, record: CheckpointRecord | Mapping[str, Any]) -> None:
        """Sync twin of `awrite_checkpoint`."""
        return self.storage.run_sync(self.awrite_checkpoint, record)

    # ---- iterations: rollouts and log trees

    async def alist_iterations(self) -> list[IterationInfo]:
        """The iterations that have a folder, by number, with what is in it."""
        found: dict[int, IterationInfo] = {}
        for entry in await self.storage.ascan(self._path()):
            match = _ITERATION.fullmatch(entry.path)
            if match and entry.stat is None:
                found.setdefault(int(match[1]), IterationInfo(int(match[1])))
        for entry in await self.storage.afind(self._path(), "iteration_"):
            folder, _, name = entry.path.partition("/")
            match = _ITERATION.fullmatch(folder)
            if match and name:
                _note_file(found.setdefault(int(match[1]), IterationInfo(int(match[1]))), name)
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
        path = self._rollouts_path(iteration, base_name)
        stat = await self.storage.astat(path)
        if stat is None:
            return []
        records = self._rollouts.get(path, stat)
        if records is None:
            records = await self._read_all(path)
            self._rollouts.put(path, stat, records)
        return records

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
        path = self._rollouts_path(iteration, base_name)
        async with contextlib.aclosing(read_records(self.storage, path)) as parts:
            async for records in parts:
                for record in records:
                    if record.get("group_idx") == group_idx and record.get("traj_idx") == traj_idx:
                        return record
        return None

    def read_single_rollout(
        self, iteration: int, group_idx: int, traj_idx: int, base_name: str = "train"
    ) -> Record | None:
        """Sync twin of `aread_single_rollout`."""
        return self.storage.run_sync(self.aread_single_rollout, iteration, group_idx, traj_idx, base_name)

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
        lines: list[bytes] = []
        unbroken = 0
        for record in records:
            lines.append(_encode(record))
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
        return sorted(name.removesuffix(LOGTREE_SUFFIX) for name in names if name.endswith(LOGTREE_SUFFIX))

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
            UnstorableValueError: A value holds itself.
        """
        name = self._logtree_name(iteration, base_name)
        await self.storage.awrite(self._path(name), encode_document(data))

    def write_logtree(self, iteration: int, data: Mapping[str, Any], base_name: str = "train") -> None:
        """Sync twin of `awrite_logtree`."""
        return self.storage.run_sync(self.awrite_logtree, iteration, data, base_name)

    # ---- code

    async def awrite_code_diff(self, diff: str | bytes) -> None:
        """Replace `code.diff`: the text in UTF-8, or the bytes as they are.

        Bytes that Python read as surrogate escapes are written back as they were.
        """
        await self.storage.awrite(self._path(CODE_DIFF), _encode_text(diff))

    def write_code_diff(self, diff: str | bytes) -> None:
        """Sync twin of `awrite_code_diff`."""
        return self.storage.run_sync(self.awrite_code_diff, diff)

    # ---- shared

    def _rollouts_path(self, iteration: int, base_name: str) -> str:
        name = check_name("base_name", base_name) + ROLLOUTS_SUFFIX
        return self._path(iteration_folder(iteration), name)

    @staticmethod
    def _logtree_name(iteration: int, base_name: str) -> str:
        return storage_join(iteration_folder(iteration), check_name("base_name", base_name) + LOGTREE_SUFFIX)

    async def _append(self, name: str, record: Mapping[str, Any]) -> None:
        await self.storage.aappend_lines(self._path(name), _encode(record))

    async def _read_document(self, name: str) -> Record | None:
        try:
            data = await self.storage.aread(self._path(name))
        except NotFoundError:
            return None
        return decode_document(data, self.url(name))

    async def _read_all(self, path: str) -> list[Record]:
        reader = IncrementalReader(self.storage, path, max_records=sys.maxsize)
        await reader.aread()
        return reader.records


def _encode(record: Mapping[str, Any]) -> bytes:
    if type(record) is dict:
        return encode_record(record)
    try:
        return encode_record(dict(record))
    except (TypeError, ValueError) as error:
        msg = f"a record must be a dict, not a {type(record).__qualname__}"
        raise UnstorableValueError(msg) from error


def _encode_text(text: str | bytes) -> bytes:
    if not isinstance(text, str):
        return bytes(text)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _note_file(info: IterationInfo, name: str) -> None:
    if name == f"train{ROLLOUTS_SUFFIX}":
        info.has_train_rollouts = True
    elif name == f"train{LOGTREE_SUFFIX}":
        info.has_train_logtree = True
    elif name.startswith("eval_") and name.endswith(ROLLOUTS_SUFFIX):
        info.eval_labels.append(name.removeprefix("eval_").removesuffix(ROLLOUTS_SUFFIX))
