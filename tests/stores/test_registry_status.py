"""The status of a run: how old its newest file is, and whether it ended."""

import os
import time
from pathlib import Path

import pytest

from runstore import LocalStorage, RunInfo, RunRegistry
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio

MINUTE, DAY = 60.0, 86_400.0


def put_aged(run: RunFolder, name: str, age: float, data: bytes = b"{}\n") -> None:
    """A file that was last written `age` seconds ago."""
    path = run.put(name, data)
    now = time.time()
    os.utime(path, (now, now - age))


async def info_of(run: RunFolder, call: Call, window: float = 120.0) -> RunInfo:
    (info,) = await call(RunRegistry([LocalStorage(run)], depth=0, active_seconds=window).arefresh)
    return info


@pytest.mark.parametrize("age", [1.0, 3 * MINUTE, 30 * MINUTE, 3 * DAY])
async def test_b04_the_age_of_the_newest_file_decides(run: RunFolder, call: Call, age: float) -> None:
    """A run is running within the window, which is a parameter, and idle after it; the reason says why."""
    put_aged(run, "metrics.jsonl", age)
    put_aged(run, "config.json", 5 * DAY)
    for window in (120.0, 600.0, 10 * DAY):
        info = await info_of(run, call, window)
        assert info.status == ("running" if age < window else "idle")
        assert info.newest_file == "metrics.jsonl"
        assert info.age == pytest.approx(age, abs=30)
        assert info.last_updated == pytest.approx(time.time() - age, abs=30)
        assert info.status_reason.startswith("metrics.jsonl changed ")


@pytest.mark.parametrize("age", [1.0, 3 * DAY])
@pytest.mark.parametrize(
    ("row", "status"),
    [
        (b'{"name": "000010", "final": true}\n', "completed"),
        (b'{"name": "final"}\n', "completed"),
        (b'{"name": "final", "final": false}\n', None),
        (b'{"name": "000010", "final": null}\n', None),
        (b'{"name": "000010", "final": tr', None),
        (b'{"name": "000010", "final": "no"}\n', None),
        (b'{"batch": 10, "final": true}\n', None),
    ],
)
async def test_b04_a_final_checkpoint_wins(
    run: RunFolder, call: Call, age: float, row: bytes, status: str | None
) -> None:
    """A run that ended is completed at once and for good; a torn line ends nothing."""
    put_aged(run, "metrics.jsonl", age)
    put_aged(run, "checkpoints.jsonl", age, b'{"name": "000005"}\n' + row)
    info = await info_of(run, call)
    assert info.status == (status or ("running" if age < MINUTE else "idle"))
    assert (info.status_reason == "it has a final checkpoint") == (status is not None)


async def test_b04_a_clock_ahead_gives_no_negative_age(run: RunFolder, call: Call) -> None:
    """A file from the future is as old as one that was just written."""
    put_aged(run, "metrics.jsonl", -10 * MINUTE)
    info = await info_of(run, call)
    assert (info.status, info.age) == ("running", 0.0)
    assert "-" not in info.status_reason


async def test_b04_fresh_rollouts_count(run: RunFolder, call: Call) -> None:
    """Of the highest iteration, by number; older iterations are not looked at."""
    put_aged(run, "metrics.jsonl", DAY)
    put_aged(run, "iteration_000009/train_rollout_summaries.jsonl", 1.0)
    put_aged(run, "iteration_000010/train_logtree.json", 2 * DAY)
    assert (await info_of(run, call)).status == "idle"
    put_aged(run, "iteration_000010/train_rollout_summaries.jsonl", 30.0)
    info = await info_of(run, call)
    assert info.status == "running"
    assert info.newest_file == "iteration_000010/train_rollout_summaries.jsonl"
    put_aged(run, "iteration_1000000/train_logtree.json", 3 * DAY)
    assert (await info_of(run, call)).status == "idle"


async def test_b04_rollouts_written_after_a_look_are_seen_by_the_next(run: RunFolder, call: Call) -> None:
    """Locally each refresh looks at the highest iteration, if the run's own files are old."""
    put_aged(run, "metrics.jsonl", DAY)
    put_aged(run, "iteration_000001/train_rollout_summaries.jsonl", DAY)
    registry = RunRegistry([LocalStorage(run)], depth=0)
    assert [info.status for info in await call(registry.arefresh)] == ["idle"]
    put_aged(run, "iteration_000001/train_rollout_summaries.jsonl", 1.0)
    assert [info.status for info in await call(registry.arefresh)] == ["running"]
    put_aged(run, "iteration_000002/train_rollout_summaries.jsonl", DAY)
    assert [info.status for info in await call(registry.arefresh)] == ["idle"]


async def test_a_run_without_files_of_its_own_age(tmp_path: Path, call: Call) -> None:
    """Nothing is invented for an iteration that is empty."""
    run = RunFolder(tmp_path)
    put_aged(run, "config.json", DAY)
    (tmp_path / "iteration_000001").mkdir()
    info = await info_of(run, call)
    assert (info.status, info.newest_file, info.iteration_count) == ("idle", "config.json", 1)
