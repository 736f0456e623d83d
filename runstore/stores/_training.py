"""One training run: what its files are called, and what they hold."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from runstore.errors import InvalidInputError, UnstorableValueError
from runstore.jsonl import AsyncFollower, Batch, Follower, IncrementalReader
from runstore.jsonl._decode import Record, decode_document
from runstore.jsonl._encode import encode_object, encode_record
from runstore.storage import Storage
from runstore.storage._paths import as_bytes
from runstore.storage._sync_only import SyncMethods
from runstore.storage._twins import show_twins
from runstore.stores._checkpoints import best_checkpoint, last_checkpoint
from runstore.stores._iterations import IterationFiles
from runstore.stores._records import CheckpointRecord
from runstore.stores._series import merge_by_step
from runstore.stores._truncate import truncate_metrics

__all__ = ["TrainingRunStore"]

logger = logging.getLogger("runstore")

CONFIG = "config.json"
METRICS = "metrics.jsonl"
TIMING = "timing_spans.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
CODE_DIFF = "code.diff"

# A timing record of an RL run is about 95 KB, so a bound on records alone would be none on memory.
TIMING_BUFFER_BYTES = 256 * 1024 * 1024


@show_twins
class TrainingRunStore(IterationFiles):
    """Reads, writes and follows the files of one training run.

    Every method exists twice: an async one with the prefix `a`, and its sync twin without. It may be
    pickled at any time, and shared by threads, tasks and event loops.

    Numbers that are not finite are stored as the tokens `NaN`, `Infinity` and `-Infinity`, which
    Python's `json` reads. A value that has no JSON form raises `UnstorableValueError`, a `TypeError`
    naming its key path, before anything is written; configurations and log trees take any value.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        only_awaited = cls.awrite_metrics is not TrainingRunStore.awrite_metrics
        if only_awaited and cls.write_metrics is TrainingRunStore.write_metrics:
            cls.write_metrics = _write_through_awaited  # type: ignore[method-assign]

    def __init__(self, storage: Storage | SyncMethods | str | os.PathLike[str], prefix: str = "") -> None:
        """Open a run; nothing is read or created yet.

        Args:
            storage: Where runs are kept: a storage, a path, a URI, or an object with the sync methods
                of a storage.
            prefix: The run's folder in it; the root itself when empty.

        Raises:
            InvalidInputError: A URI that cannot be right.
        """
        super().__init__(storage, prefix)
        self._metrics = self._new_metrics_reader()
        self._timing = IncrementalReader(self.storage, self._path(TIMING), max_bytes=TIMING_BUFFER_BYTES)
        # Holds the configuration once read; each write ends with another dict.
        self._kept_config: dict[str, Record] = {}

    def _new_metrics_reader(self) -> IncrementalReader:
        return IncrementalReader(self.storage, self._path(METRICS))

    # ---- configuration

    async def aread_config(self) -> Record | None:
        """The configuration, or `None` when there is none yet.

        Kept after the first time: the same object comes back.

        Raises:
            MalformedFileError: The file cannot be read as a JSON object.
        """
        kept = self._kept_config
        if CONFIG in kept:
            return kept[CONFIG]
        config = await self._read_document(CONFIG)
        return None if config is None else kept.setdefault(CONFIG, config)

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
        data = encode_object("a configuration", config)
        kept = self._kept_config
        await self.storage.awrite(self._path(CONFIG), data)
        # After writes that overlapped nobody knows which one stayed: the next read tells.
        alone = self._kept_config is kept
        self._kept_config = {CONFIG: decode_document(data, self.url(CONFIG))} if alone else {}

    def write_config(self, config: Any) -> None:
        """Sync twin of `awrite_config`."""
        return self.storage.run_sync(self.awrite_config, config)

    # ---- metrics

    async def aread_metrics(self) -> list[Record]:
        """The buffered metrics, the newest 50,000 records at most; only what is new is fetched."""
        reader = self._metrics
        await reader.aupdate()
        return reader.records

    def read_metrics(self) -> list[Record]:
        """Sync twin of `aread_metrics`."""
        return self.storage.run_sync(self.aread_metrics)

    async def aread_new_metrics(self) -> list[Record]:
        """The metrics that came since the last read through this store, however many."""
        return await self._metrics.aread()

    def read_new_metrics(self) -> list[Record]:
        """Sync twin of `aread_new_metrics`."""
        return self._metrics.read()

    async def aread_metrics_by_step(self) -> list[Record]:
        """The buffered metrics as a clean series: one record a step, in ascending order of step.

        Records of one step are merged key by key, and the value that comes later in the file wins:
        after a resume the newer run's values count, and an evaluation's line joins the training
        line of its step. A step is an integer or a float with an integral value (5.0 is 5), and an
        integer in the result. Records without a step, or whose step is a bool, a string or anything
        else, are left out; like all others they stay in `aread_metrics`.

        Returns:
            New dicts; nested values are shared with the raw records.
        """
        return await merge_by_step(await self.aread_metrics())

    def read_metrics_by_step(self) -> list[Record]:
        """Sync twin of `aread_metrics_by_step`."""
        return self.storage.run_sync(self.aread_metrics_by_step)

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
        reader = self._metrics
        await reader.aupdate()
        return reader.snapshot()

    def snapshot_metrics(self) -> Batch:
        """Sync twin of `asnapshot_metrics`."""
        return self.storage.run_sync(self.asnapshot_metrics)

    def afollow_metrics(self, *, cursor: str | None = None, interval: float = 0.25) -> AsyncFollower:
        """Metrics as they are written: an async iterator of batches.

        Its sync twin blocks the calling thread, with any event loop on it, while it waits for one.

        Args:
            cursor: Where to begin: `None` for the first record, `"end"` for what comes once the
                iteration has begun, or the cursor of a batch or of `metrics_cursor()`. A cursor
                into a file that was replaced since gives a batch with `reset` set, and that file
                from its start.
            interval: Seconds between looks at the storage; on a local disk a change is seen within
                tens of milliseconds all the same.

        Raises:
            InvalidInputError: The string is no cursor, or the interval is not positive.
        """
        return AsyncFollower(self.storage, self._path(METRICS), cursor, interval)

    def follow_metrics(self, *, cursor: str | None = None, interval: float = 0.25) -> Follower:
        """Sync twin of `afollow_metrics`."""
        return Follower(self.storage, self._path(METRICS), cursor, interval)

    async def awrite_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one record: `{"step": step, **metrics}` when a step is given, else `metrics`.

        Args:
            metrics: Names and values; numbers of numpy, torch and the like are taken.
            step: Training step; a `step` among the metrics takes its place.

        Raises:
            UnstorableValueError: It is no mapping, or a value has no JSON form; nothing was written.
        """
        await self.storage.aappend_lines(self._path(METRICS), _metrics_line(metrics, step))

    def write_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Sync twin of `awrite_metrics`."""
        # Not driven: the coroutines would cost a tenth of a write to a local file.
        self.storage.append_lines(self._path(METRICS), _metrics_line(metrics, step))

    async def atruncate_metrics(self, from_step: int) -> int:
        """Drop the metrics of steps that a resumed run will do again.

        Rows with an integer `step >= from_step` go; all others and unreadable lines stay. Before,
        the file is copied unchanged to `metrics.jsonl.pre_resume_<from_step>` (six digits; `.1`,
        `.2` … are added rather than overwriting an earlier copy). Nobody else may be appending.

        Args:
            from_step: First step to drop, from 0.

        Returns:
            How many rows were dropped. With none, nothing is copied or changed; else this store
            reads the file anew, and `aread_new_metrics` gives all of it.

        Raises:
            InvalidInputError: The step is negative.
            TypeError: It is no integer.
        """
        dropped = await truncate_metrics(self.storage, self._path(METRICS), from_step)
        if dropped:
            self._metrics = self._new_metrics_reader()  # what the old one keeps may be gone
        return dropped

    def truncate_metrics(self, from_step: int) -> int:
        """Sync twin of `atruncate_metrics`."""
        return self.storage.run_sync(self.atruncate_metrics, from_step)

    # ---- timing

    async def aread_timing(self) -> list[Record]:
        """The buffered timing records, `{"step": …, "spans": […]}`; only what is new is fetched.

        The buffer keeps the newest 50,000 records, of 256 MB of the file at most.
        """
        await self._timing.aupdate()
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
            UnstorableValueError: It is no list, or a value has no JSON form; nothing was written.
        """
        if isinstance(spans, str | bytes | Mapping):
            msg = f"spans must be a list of objects, one a span, not {type(spans).__qualname__}"
            raise UnstorableValueError(msg)
        if spans:
            record = {"step": step, "spans": spans}
            await self.storage.aappend_lines(self._path(TIMING), encode_record(record))

    def write_timing_spans(self, step: int, spans: Sequence[Mapping[str, Any]]) -> None:
        """Sync twin of `awrite_timing_spans`."""
        return self.storage.run_append(self.awrite_timing_spans, step, spans)

    # ---- checkpoints

    async def aread_checkpoints(self) -> list[Record]:
        """The rows of `checkpoints.jsonl`, in file order."""
        return await self._read_lines(CHECKPOINTS)

    def read_checkpoints(self) -> list[Record]:
        """Sync twin of `aread_checkpoints`."""
        return self.storage.run_sync(self.aread_checkpoints)

    async def aread_checkpoint_records(self) -> list[CheckpointRecord]:
        """The rows of `checkpoints.jsonl` as records; a row without a name is skipped and logged."""
        rows = await self.aread_checkpoints()
        named = [row for row in rows if row.get("name") is not None]
        if len(named) < len(rows):
            nameless = len(rows) - len(named)
            logger.warning("%s: skipped %d row(s) without a name", self.url(CHECKPOINTS), nameless)
        return [CheckpointRecord.from_dict(row) for row in named]

    def read_checkpoint_records(self) -> list[CheckpointRecord]:
        """Sync twin of `aread_checkpoint_records`."""
        return self.storage.run_sync(self.aread_checkpoint_records)

    async def afind_checkpoint(
        self, name: str | None = None, *, best: str | None = None, lowest: bool = False
    ) -> CheckpointRecord | None:
        """The checkpoint to go on from, `None` when there is none.

        Without arguments the final one, or else the last. A line that was cut off is none.

        Args:
            name: Only checkpoints of this name; of several the last counts.
            best: The one with the best value of this metric: the last value at or before its batch,
                after restarts that of the later run. Of equals the latest.
            lowest: Whether less of the metric is better.

        Raises:
            InvalidInputError: Both a name and a metric are given, `lowest` without a metric, or there are
                checkpoints and no record has the metric.
        """
        if name is not None and best is not None:
            msg = f"a checkpoint is chosen by name or by metric, not by both: {name!r}, {best!r}"
            raise InvalidInputError(msg)
        if lowest and best is None:
            msg = "lowest=True needs the metric that is to be low: find_checkpoint(best='loss', lowest=True)"
            raise InvalidInputError(msg)
        records = await self.aread_checkpoint_records()
        if best is None:
            return last_checkpoint(records, name)
        series = await self.aread_metrics_by_step()
        is_there = any(best in row for row in series)
        if records and not is_there and best not in (known := self.metric_keys()):
            near = difflib.get_close_matches(best, known, 3) or sorted(known)[:10]
            hint = f"there is {', '.join(near)}" if near else "there are no metrics"
            msg = f"no record of {self.url(METRICS)} has the metric {best!r}; {hint}"
            raise InvalidInputError(msg)
        return best_checkpoint(records, series, best, lowest=lowest)

    def find_checkpoint(
        self, name: str | None = None, *, best: str | None = None, lowest: bool = False
    ) -> CheckpointRecord | None:
        """Sync twin of `afind_checkpoint`."""
        return self.storage.run_sync(self.afind_checkpoint, name, best=best, lowest=lowest)

    async def awrite_checkpoint(self, record: CheckpointRecord | Mapping[str, Any]) -> None:
        """Append one checkpoint; it is durable in the backend when this returns.

        Args:
            record: A `CheckpointRecord`, or a dict with at least a `name`.

        Raises:
            InvalidInputError: There is no name.
            UnstorableValueError: A value has no JSON form; nothing was written.
        """
        row: object = record.to_dict() if isinstance(record, CheckpointRecord) else record
        if not isinstance(row, Mapping) or row.get("name") is None:
            msg = f"a checkpoint must be an object with a 'name': {row!r:.200}"
            raise InvalidInputError(msg)
        await self.storage.aappend_lines(self._path(CHECKPOINTS), encode_record(row))
        await self.storage.aflush()

    def write_checkpoint(self, record: CheckpointRecord | Mapping[str, Any]) -> None:
        """Sync twin of `awrite_checkpoint`."""
        return self.storage.run_sync(self.awrite_checkpoint, record)

    # ---- code

    async def awrite_code_diff(self, diff: str | bytes) -> None:
        """Replace `code.diff`: the text in UTF-8, or the bytes as they are.

        Bytes that Python read as surrogate escapes are written back as they were.
        """
        await self.storage.awrite(self._path(CODE_DIFF), _encode_text(diff))

    def write_code_diff(self, diff: str | bytes) -> None:
        """Sync twin of `awrite_code_diff`."""
        return self.storage.run_sync(self.awrite_code_diff, diff)


def _encode_text(text: str | bytes) -> bytes:
    if not isinstance(text, str):
        return as_bytes(CODE_DIFF, text)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _write_through_awaited(
    self: TrainingRunStore, metrics: Mapping[str, Any], step: int | None = None
) -> None:
    """`write_metrics` of a subclass that has an `awrite_metrics` of its own."""
    self.storage.run_append(self.awrite_metrics, metrics, step)


def _metrics_line(metrics: Mapping[str, Any], step: int | None) -> bytes:
    if step is not None and hasattr(metrics, "keys"):
        metrics = {"step": step, **metrics}
    return encode_record(metrics)
