"""The trajectories of evaluation runs: a line each, read a piece at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from runstore.errors import InvalidInputError
from runstore.jsonl._encode import encode_record
from runstore.jsonl._scan import read_records
from runstore.storage import storage_join
from runstore.storage._paths import check_name, check_path
from runstore.storage._twins import show_twins
from runstore.stores._eval_records import StoredTrajectory, fields_of
from runstore.stores._run_files import RunFiles

__all__ = ["RUNS", "TrajectoryFiles", "check_folder"]

logger = logging.getLogger("runstore")

RUNS = "runs"
TRAJECTORIES = "trajectories.jsonl"


@show_twins
class TrajectoryFiles(RunFiles):
    """The part of an evaluation store that is about trajectories."""

    async def aread_trajectories(
        self,
        run_id: str,
        benchmark: str,
        *,
        correct_only: bool = False,
        incorrect_only: bool = False,
        errors_only: bool = False,
    ) -> list[StoredTrajectory]:
        """The trajectories of a benchmark, in file order; of the file a piece at a time is in memory.

        Args:
            run_id: The run.
            benchmark: Name of the benchmark.
            correct_only: Only those with a positive reward.
            incorrect_only: Only those that ran and got no positive reward.
            errors_only: Only those that failed.

        Raises:
            InvalidInputError: The id or the name cannot be one.
        """
        kept: list[StoredTrajectory] = []
        async with contextlib.aclosing(self._trajectories(run_id, benchmark)) as trajectories:
            async for trajectory in trajectories:
                correct, failed = _is_correct(trajectory), trajectory.error is not None
                if (
                    (correct_only and not correct)
                    or (incorrect_only and (correct or failed))
                    or (errors_only and not failed)
                ):
                    continue
                kept.append(trajectory)
        return kept

    def read_trajectories(
        self,
        run_id: str,
        benchmark: str,
        *,
        correct_only: bool = False,
        incorrect_only: bool = False,
        errors_only: bool = False,
    ) -> list[StoredTrajectory]:
        """Sync twin of `aread_trajectories`."""
        return self.storage.run_sync(
            self.aread_trajectories,
            run_id,
            benchmark,
            correct_only=correct_only,
            incorrect_only=incorrect_only,
            errors_only=errors_only,
        )

    async def aread_single_trajectory(self, run_id: str, benchmark: str, idx: int) -> StoredTrajectory | None:
        """The trajectory of one example, or `None`; reading stops when it is found.

        Raises:
            InvalidInputError: The id or the name cannot be one.
        """
        async with contextlib.aclosing(self._trajectories(run_id, benchmark)) as trajectories:
            async for trajectory in trajectories:
                if trajectory.idx == idx:
                    return trajectory
        return None

    def read_single_trajectory(self, run_id: str, benchmark: str, idx: int) -> StoredTrajectory | None:
        """Sync twin of `aread_single_trajectory`."""
        return self.storage.run_sync(self.aread_single_trajectory, run_id, benchmark, idx)

    async def awrite_trajectory(self, run_id: str, benchmark: str, traj: Any) -> None:
        """Append one trajectory.

        Args:
            run_id: The run.
            benchmark: Name of the benchmark.
            traj: A `StoredTrajectory`, or any object with its fields.

        Raises:
            InvalidInputError: The id or the name cannot be one.
            UnstorableValueError: A value has no JSON form; nothing was written.
        """
        name = self._run_path(run_id, check_folder("benchmark", benchmark), TRAJECTORIES)
        await self.storage.aappend_lines(self._path(name), encode_record(fields_of(traj, StoredTrajectory)))

    def write_trajectory(self, run_id: str, benchmark: str, traj: Any) -> None:
        """Sync twin of `awrite_trajectory`."""
        return self.storage.run_sync(self.awrite_trajectory, run_id, benchmark, traj)

    def _run_path(self, run_id: str, *parts: str) -> str:
        return storage_join(RUNS, check_folder("run id", run_id), *parts)

    async def _trajectories(self, run_id: str, benchmark: str) -> AsyncGenerator[StoredTrajectory]:
        name = self._run_path(run_id, check_folder("benchmark", benchmark), TRAJECTORIES)
        skipped = 0
        async with contextlib.aclosing(read_records(self.storage, self._path(name))) as parts:
            async for records in parts:
                for record in records:
                    try:
                        trajectory = StoredTrajectory.from_dict(record)
                    except (TypeError, ValueError, AttributeError):
                        skipped += 1
                    else:
                        yield trajectory
        if skipped:
            logger.warning("%s: skipped %d line(s) that are no trajectory", self.url(name), skipped)


def _is_correct(trajectory: StoredTrajectory) -> bool:
    reward: Any = trajectory.reward
    return isinstance(reward, int | float) and reward > 0


def check_folder(what: str, name: str) -> str:
    """A name that becomes a folder.

    Raises:
        InvalidInputError: It would name a folder elsewhere, or a hidden one.
    """
    check_name(what, name)
    if name.startswith(".") or "%2f" in name.lower():
        msg = f"{what} {name!r} must not begin with '.' or hold an encoded slash: it names a folder"
        raise InvalidInputError(msg)
    return check_path(name)
