"""Evaluation runs across checkpoints: an index, and a folder a run."""

from __future__ import annotations

import datetime as dt
import errno
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from runstore.errors import InvalidInputError, MalformedFileError, NotFoundError
from runstore.jsonl._decode import Record, decode_document
from runstore.jsonl._encode import encode_document, encode_record
from runstore.storage import LocalStorage, Storage, storage_join
from runstore.storage._bridge import gather
from runstore.storage._sync_only import SyncMethods
from runstore.storage._twins import show_twins
from runstore.stores._eval_records import BenchmarkResult, RunMetadata, fields_of
from runstore.stores._eval_trajectories import RUNS, TrajectoryFiles, check_folder

__all__ = ["EvalStore"]

logger = logging.getLogger("runstore")

RUNS_INDEX = "runs.jsonl"
METADATA = "metadata.json"
SUMMARY = "summary.json"
RESULT = "result.json"


@show_twins
class EvalStore(TrajectoryFiles):
    """Creates, reads and deletes evaluation runs.

    Every method exists twice: an async one with the prefix `a`, and its sync twin without. Ids of runs
    and names of benchmarks become folders: they hold no `/` and do not begin with a dot.
    """

    def __init__(
        self, storage_or_path: Storage | SyncMethods | str | os.PathLike[str], prefix: str = ""
    ) -> None:
        """Open a store; nothing is read or created yet.

        Args:
            storage_or_path: Where it is kept: a storage, a path or a URI.
            prefix: Its folder in there; the root itself when empty.

        Raises:
            InvalidInputError: A URI that cannot be right.
        """
        super().__init__(storage_or_path, prefix)

    def run_dir(self, run_id: str) -> str:
        """Local path of a run's folder.

        Raises:
            InvalidInputError: The id cannot be one, or the store is not on a local disk.
        """
        path = self._run_path(run_id)
        if not isinstance(self.storage, LocalStorage):
            msg = f"{self.url(path)} has no local folder; use url()"
            raise InvalidInputError(msg)
        return str(self.storage.root / self._path(path))

    # ---- runs

    async def acreate_run(  # noqa: PLR0913, PLR0917  the signature is that of existing code
        self,
        model_name: str,
        benchmarks: Sequence[str],
        checkpoint_path: str | None = None,
        checkpoint_name: str | None = None,
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Create a run.

        Args:
            model_name: The model to evaluate.
            benchmarks: Names of the benchmarks it will cover.
            checkpoint_path: Where the weights lie, `None` for the base model.
            checkpoint_name: Name of the checkpoint, `None` for the base model.
            config: How it is run.
            run_id: Its id; by default `<checkpoint or "base">_<YYYYmmdd_HHMMSS>_<6 hex digits>`.

        Returns:
            The id.

        Raises:
            InvalidInputError: The id, or the name of a benchmark, cannot be one, or they are no list.
        """
        now = dt.datetime.now()  # noqa: DTZ005  stored as existing runs have it, in local time
        if run_id is None:
            label = (checkpoint_name or "base").replace("/", "_").lstrip(".") or "base"
            run_id = f"{label}_{now:%Y%m%d_%H%M%S}_{secrets.token_hex(3)}"
        path = self._run_path(run_id, METADATA)
        if isinstance(benchmarks, str):
            msg = f"benchmarks must be a list of names, not {benchmarks!r}"
            raise InvalidInputError(msg)
        for benchmark in benchmarks:
            check_folder("benchmark", benchmark)
        metadata = RunMetadata(
            run_id=run_id,
            model_name=model_name,
            checkpoint_path=checkpoint_path,
            checkpoint_name=checkpoint_name,
            benchmarks=list(benchmarks),
            timestamp=now.isoformat(),
            config=dict(config or {}),
        )
        await self._write(metadata.to_dict(), path)
        entry = {
            "run_id": run_id,
            "timestamp": metadata.timestamp,
            "model": model_name,
            "checkpoint": checkpoint_name,
        }
        await self.storage.aappend_lines(self._path(RUNS_INDEX), encode_record(entry))
        return run_id

    def create_run(  # noqa: PLR0913, PLR0917  as its twin
        self,
        model_name: str,
        benchmarks: Sequence[str],
        checkpoint_path: str | None = None,
        checkpoint_name: str | None = None,
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Sync twin of `acreate_run`."""
        return self.storage.run_sync(
            self.acreate_run, model_name, benchmarks, checkpoint_path, checkpoint_name, config, run_id
        )

    async def afinalize_run(self, run_id: str) -> RunMetadata:
        """Collect the scores of a run's results into its metadata.

        Raises:
            InvalidInputError: The id cannot be one.
            NotFoundError: There is no such run.
        """
        metadata = await self.aread_run(run_id)
        results = await gather([partial(self.aread_result, run_id, name) for name in metadata.benchmarks])
        for name, result in zip(metadata.benchmarks, results, strict=True):
            if result is not None:
                metadata.scores[name] = result.score
        await self._write(metadata.to_dict(), self._run_path(run_id, METADATA))
        return metadata

    def finalize_run(self, run_id: str) -> RunMetadata:
        """Sync twin of `afinalize_run`."""
        return self.storage.run_sync(self.afinalize_run, run_id)

    async def alist_runs(self) -> list[RunMetadata]:
        """The runs, newest timestamp first, ties by id; one that cannot be read is skipped and logged."""
        names = await self.storage.alist_dir(self._path(RUNS))
        runs = await gather([partial(self._read_listed, name) for name in names if not name.startswith(".")])
        by_id = sorted((run for run in runs if run is not None), key=lambda run: run.run_id)
        return sorted(by_id, key=lambda run: str(run.timestamp), reverse=True)

    def list_runs(self) -> list[RunMetadata]:
        """Sync twin of `alist_runs`."""
        return self.storage.run_sync(self.alist_runs)

    async def aread_run(self, run_id: str) -> RunMetadata:
        """The metadata of a run.

        Raises:
            InvalidInputError: The id cannot be one.
            MalformedFileError: Its metadata cannot be read.
            NotFoundError: There is no such run.
        """
        name = self._run_path(run_id, METADATA)
        try:
            data = await self.storage.aread(self._path(name))
        except NotFoundError as error:
            msg = f"no evaluation run has the id {run_id!r}: list_runs() gives those that there are"
            raise NotFoundError(errno.ENOENT, msg, self.url(name)) from error
        try:
            return RunMetadata.from_dict(decode_document(data, self.url(name)))
        except TypeError as error:
            msg = f"{self.url(name)} lacks a field: {error}"
            raise MalformedFileError(msg) from error

    def read_run(self, run_id: str) -> RunMetadata:
        """Sync twin of `aread_run`."""
        return self.storage.run_sync(self.aread_run, run_id)

    async def adelete_run(self, run_id: str) -> None:
        """Delete a run with its folders, also what an interrupted one left; no error when it is gone.

        The index keeps its line; `list_runs` goes by the folders.

        Raises:
            InvalidInputError: The id cannot be one.
        """
        folder = self._path(self._run_path(run_id))
        await self.storage.aremove(folder)  # if it is a link, whose target stays as it is
        # The metadata goes first: a deletion that is interrupted leaves no run that looks whole.
        await self.storage.aremove(storage_join(folder, METADATA))
        await self._remove_tree(folder)

    def delete_run(self, run_id: str) -> None:
        """Sync twin of `adelete_run`."""
        return self.storage.run_sync(self.adelete_run, run_id)

    # ---- results

    async def alist_benchmarks(self, run_id: str) -> list[str]:
        """Names of the benchmarks that a run has a result of, sorted.

        Raises:
            InvalidInputError: The id cannot be one.
        """
        found = await self.storage.afind(self._path(self._run_path(run_id)), depth=2)
        parts = [path.split("/") for path in found]
        return sorted(part[0] for part in parts if part[1:] == [RESULT])

    def list_benchmarks(self, run_id: str) -> list[str]:
        """Sync twin of `alist_benchmarks`."""
        return self.storage.run_sync(self.alist_benchmarks, run_id)

    async def aread_result(self, run_id: str, benchmark: str) -> BenchmarkResult | None:
        """The result of a benchmark, `None` when there is none.

        Raises:
            InvalidInputError: The id or the name cannot be one.
            MalformedFileError: It cannot be read.
        """
        name = self._run_path(run_id, check_folder("benchmark", benchmark), RESULT)
        document = await self._read_document(name)
        if document is None:
            return None
        try:
            return BenchmarkResult.from_dict(document)
        except (TypeError, ValueError, AttributeError) as error:
            msg = f"{self.url(name)} is no benchmark result: {error}"
            raise MalformedFileError(msg) from error

    def read_result(self, run_id: str, benchmark: str) -> BenchmarkResult | None:
        """Sync twin of `aread_result`."""
        return self.storage.run_sync(self.aread_result, run_id, benchmark)

    async def awrite_result(self, run_id: str, result: Any) -> None:
        """Replace the result of a benchmark.

        Args:
            run_id: The run.
            result: A `BenchmarkResult`, or any object with its fields.

        Raises:
            InvalidInputError: The id or the name cannot be one.
        """
        row = fields_of(result, BenchmarkResult)
        name = self._run_path(run_id, check_folder("benchmark", row["name"]), RESULT)
        row["pass_at_k"] = {str(k): value for k, value in (row.get("pass_at_k") or {}).items()}
        await self._write(row, name)

    def write_result(self, run_id: str, result: Any) -> None:
        """Sync twin of `awrite_result`."""
        return self.storage.run_sync(self.awrite_result, run_id, result)

    # ---- summary

    async def aread_summary(self, run_id: str) -> Record | None:
        """The summary of a run, `None` when there is none.

        Raises:
            InvalidInputError: The id cannot be one.
            MalformedFileError: It cannot be read.
        """
        return await self._read_document(self._run_path(run_id, SUMMARY))

    def read_summary(self, run_id: str) -> Record | None:
        """Sync twin of `aread_summary`."""
        return self.storage.run_sync(self.aread_summary, run_id)

    async def awrite_summary(self, run_id: str, results: Mapping[str, Any]) -> None:
        """Replace the summary of a run: score and counts by benchmark.

        Args:
            run_id: The run.
            results: `BenchmarkResult`s, or objects with their fields, by name.

        Raises:
            InvalidInputError: The id cannot be one.
        """
        shown = ("score", "num_examples", "num_correct", "num_errors")
        path = self._run_path(run_id, SUMMARY)
        summary = {}
        for name, result in results.items():
            row = fields_of(result, BenchmarkResult)
            summary[name] = {field: row.get(field, 0) for field in shown}
        await self._write(summary, path)

    def write_summary(self, run_id: str, results: Mapping[str, Any]) -> None:
        """Sync twin of `awrite_summary`."""
        return self.storage.run_sync(self.awrite_summary, run_id, results)

    # ---- shared

    async def _read_listed(self, run_id: str) -> RunMetadata | None:
        try:
            return await self.aread_run(run_id)
        except NotFoundError:
            return None
        except (MalformedFileError, InvalidInputError) as error:
            logger.warning("left out of the list: %s", error)
            return None

    async def _remove_tree(self, folder: str) -> None:
        """Remove a folder and what is in it, from the bottom; of a link only the link."""
        await self.storage.aremove(folder)
        listing = await self.storage.ascan(folder)
        await gather([partial(self.storage.aremove, storage_join(folder, name)) for name in listing.files])
        for name in listing.folders:
            await self._remove_tree(storage_join(folder, name))
        await self.storage.aremove_dir(folder)

    async def _write(self, document: Mapping[str, Any], name: str) -> None:
        await self.storage.awrite(self._path(name), encode_document(document))
