"""The evaluation store: runs, results, trajectories, and what is left after a deletion."""

import json
import pickle
import re
from collections import namedtuple
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runstore import (
    BenchmarkResult,
    EvalStore,
    InvalidInputError,
    LocalStorage,
    MalformedFileError,
    NotFoundError,
    StoredTrajectory,
    StoredTurn,
    UnstorableValueError,
)
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio

BAD_NAMES = ["", ".", "..", ".hidden", "a/b", "../b", "/a", "a\0b", "a%2fb", "a%2F.."]


@pytest.fixture
def evals(tmp_path: Path) -> EvalStore:
    return EvalStore(tmp_path / "evals")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "evals")


# ---- runs


async def test_a_run_is_created(evals: EvalStore, folder: RunFolder, call: Call) -> None:
    """Its metadata and its line of the index are there, and its id names checkpoint and time."""
    run_id = await call(evals.acreate_run, "model", ["gsm8k"], "tinker://x", "000010", {"n": 1})
    assert re.fullmatch(r"000010_\d{8}_\d{6}_[0-9a-f]{6}", run_id)
    metadata = json.loads(folder.get(f"runs/{run_id}/metadata.json"))
    assert metadata["config"] == {"n": 1}
    assert (metadata["model_name"], metadata["benchmarks"]) == ("model", ["gsm8k"])
    assert json.loads(folder.get("runs.jsonl")) == {
        "run_id": run_id,
        "timestamp": metadata["timestamp"],
        "model": "model",
        "checkpoint": "000010",
    }
    assert (await call(evals.aread_run, run_id)).to_dict() == metadata
    assert (await call(evals.acreate_run, "model", [])).startswith("base_")
    assert await call(evals.acreate_run, "model", [], run_id="mine") == "mine"
    with pytest.raises(NotFoundError):
        await call(evals.aread_run, "none")


async def test_finalising_collects_scores(evals: EvalStore, call: Call) -> None:
    """Of the benchmarks that have a result; an unknown run is not found."""
    run_id = await call(evals.acreate_run, "model", ["a", "b", "c"])
    await call(evals.awrite_result, run_id, BenchmarkResult("a", 0.25, 4, 1))
    await call(evals.awrite_result, run_id, BenchmarkResult("c", float("nan"), 0, 0))
    metadata = await call(evals.afinalize_run, run_id)
    assert metadata.scores["a"] == 0.25
    assert sorted((await call(evals.aread_run, run_id)).scores) == ["a", "c"]
    with pytest.raises(NotFoundError, match="no evaluation run has the id 'none'"):
        await call(evals.afinalize_run, "none")


async def test_runs_are_listed_newest_first(
    evals: EvalStore, folder: RunFolder, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Ties by id; what is no run, or cannot be read, is left out, and the latter is logged."""
    assert await call(evals.alist_runs) == []
    for run_id, timestamp in (
        ("b", "2026-01-02"),
        ("a", "2026-01-02"),
        ("z", "2026-01-01"),
        ("c", "2026-01-03"),
    ):
        row = {"run_id": run_id, "model_name": "m", "checkpoint_path": None, "checkpoint_name": None}
        folder.put(
            f"runs/{run_id}/metadata.json",
            json.dumps({**row, "benchmarks": [], "timestamp": timestamp, "unknown": 1}).encode(),
        )
    folder.put("runs/torn/metadata.json", b'{"run_id": ')
    folder.put("runs/short/metadata.json", b'{"run_id": "short"}')
    folder.put("runs/%2f/metadata.json", b"{}")
    folder.put("runs/.ipynb_checkpoints/metadata.json", b"{}")
    folder.put("runs/left/gsm8k/trajectories.jsonl", b"{}")
    folder.put("runs/file", b"")
    assert [run.run_id for run in await call(evals.alist_runs)] == ["c", "a", "b", "z"]
    assert "torn" in caplog.text
    assert "short" in caplog.text
    with pytest.raises(MalformedFileError):
        await call(evals.aread_run, "short")


# ---- results


async def test_results_come_back(evals: EvalStore, folder: RunFolder, call: Call) -> None:
    """With the k of `pass_at_k` as strings in the file; `None` where there is none."""
    result = BenchmarkResult("gsm8k", 0.5, 2, 1, metrics={"len": 1.5}, pass_at_k={1: 0.5, 8: 1.0})
    await call(evals.awrite_result, "r", result)
    assert json.loads(folder.get("runs/r/gsm8k/result.json"))["pass_at_k"] == {"1": 0.5, "8": 1.0}
    assert await call(evals.aread_result, "r", "gsm8k") == result
    assert await call(evals.aread_result, "r", "none") is None
    folder.put("runs/r/bad/result.json", b'{"name": "bad"}')
    with pytest.raises(MalformedFileError, match="bad"):
        await call(evals.aread_result, "r", "bad")
    await call(evals.awrite_trajectory, "r", "unfinished", StoredTrajectory(0, "unfinished"))
    assert await call(evals.alist_benchmarks, "r") == ["bad", "gsm8k"]
    assert await call(evals.alist_benchmarks, "none") == []


async def test_summaries(evals: EvalStore, call: Call) -> None:
    """Score and counts by benchmark."""
    assert await call(evals.aread_summary, "r") is None
    await call(evals.awrite_summary, "r", {"a": BenchmarkResult("a", 0.5, 2, 1), "b": SimpleNamespace(
        name="b", score=1.0, num_examples=1, num_correct=1)})  # fmt: skip
    assert await call(evals.aread_summary, "r") == {
        "a": {"score": 0.5, "num_examples": 2, "num_correct": 1, "num_errors": 0},
        "b": {"score": 1.0, "num_examples": 1, "num_correct": 1, "num_errors": 0},
    }


# ---- trajectories


async def test_trajectories_are_filtered(evals: EvalStore, call: Call) -> None:
    """Correct, incorrect and failed ones, in file order."""
    rows = [(0, 1.0, None), (1, 0.0, None), (2, 0.0, "timeout"), (3, 0.5, "late"), (4, -1.0, None)]
    for idx, reward, error in rows:
        await call(evals.awrite_trajectory, "r", "b", StoredTrajectory(idx, "b", reward=reward, error=error))

    async def found(**options: bool) -> list[int]:
        return [t.idx for t in await call(evals.aread_trajectories, "r", "b", **options)]

    assert await found() == [0, 1, 2, 3, 4]
    assert await found(correct_only=True) == [0, 3]
    assert await found(incorrect_only=True) == [1, 4]
    assert await found(errors_only=True) == [2, 3]
    assert await found(correct_only=True, errors_only=True) == [3]
    assert await call(evals.aread_trajectories, "r", "none") == []


async def test_lines_that_are_no_trajectory_are_skipped(
    evals: EvalStore, folder: RunFolder, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Torn lines, other objects, and rewards that are none hide no other trajectory."""
    lines = [
        b'{"idx": 0, "benchmark": "b", "new field": 1}', b'{"no": "trajectory"}', b"[1]", b'{"idx": 1, "ben',
        b'{"idx": 2, "benchmark": "b", "reward": null, "turns": [{"role": "user", "content": "?"}]}',
        b'{"idx": 3, "benchmark": "b", "turns": [{"odd": 1}]}',
    ]  # fmt: skip
    folder.put("runs/r/b/trajectories.jsonl", b"\n".join(lines) + b"\n")
    found = await call(evals.aread_trajectories, "r", "b")
    assert [(t.idx, t.turns) for t in found] == [(0, []), (2, [StoredTurn("user", "?")])]
    assert await call(evals.aread_trajectories, "r", "b", correct_only=True) == []
    assert "2 line(s)" in caplog.text


class Ranges(LocalStorage):
    """A local storage that notes how much is read."""

    read_bytes = 0

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = await super().aread_range(path, offset, length)
        self.read_bytes += len(data)
        return data


async def test_a_single_trajectory_stops_reading(tmp_path: Path, call: Call) -> None:
    """One near the start of a large file costs one fetch; none costs the file once."""
    storage = Ranges(tmp_path)
    path = tmp_path / "runs" / "r" / "b" / "trajectories.jsonl"
    path.parent.mkdir(parents=True)
    filler = "x" * 10_000
    with path.open("w") as file:
        for idx in range(1_000):
            file.write(json.dumps({"idx": idx, "benchmark": "b", "example_id": filler}) + "\n")
    evals = EvalStore(storage)
    found = await call(evals.aread_single_trajectory, "r", "b", 3)
    assert found is not None
    assert found.idx == 3
    assert storage.read_bytes < 2_000_000
    assert await call(evals.aread_single_trajectory, "r", "b", 5_000) is None


# ---- objects of other classes


@dataclass
class TheirTurn:
    role: str
    content: str


@dataclass
class TheirTrajectory:
    idx: int
    benchmark: str
    turns: list[Any] = field(default_factory=list)
    reward: float = 0.0


class Slotted:
    __slots__ = ("name", "num_correct", "num_examples", "pass_at_k", "score")

    def __init__(self) -> None:
        self.name, self.score, self.num_examples, self.num_correct = "slotted", 1.0, 1, 1
        self.pass_at_k: Any = None


Row = namedtuple("Row", "idx benchmark reward")  # noqa: PYI024  an untyped one is what existing code has


async def test_objects_of_other_classes_are_written(evals: EvalStore, call: Call) -> None:
    """Dataclasses, namespaces, tuples, dicts, objects with `to_dict` or slots: the fields are what counts."""
    turns: list[Any] = [
        TheirTurn("user", "?"),
        {"role": "assistant", "content": "!"},
        StoredTurn("grader", "+"),
    ]
    written: list[Any] = [
        TheirTrajectory(0, "b", turns, 1.0),
        SimpleNamespace(idx=1, benchmark="b", turns=turns, other="left out"),
        {"idx": 2, "benchmark": "b", "turns": turns},
        SimpleNamespace(to_dict=lambda: {"idx": 3, "benchmark": "b", "turns": turns}),
        Row(4, "b", 0.5),
    ]
    for trajectory in written:
        await call(evals.awrite_trajectory, "r", "b", trajectory)
    found = await call(evals.aread_trajectories, "r", "b")
    assert [t.idx for t in found] == [0, 1, 2, 3, 4]
    expected = [StoredTurn("user", "?"), StoredTurn("assistant", "!"), StoredTurn("grader", "+")]
    assert [t.turns for t in found] == [expected] * 4 + [[]]
    results: list[Any] = [Slotted(), {"name": "dict", "score": 0.0, "num_examples": 1, "num_correct": 0}]
    for result in results:
        await call(evals.awrite_result, "r", result)
    assert await call(evals.alist_benchmarks, "r") == ["dict", "slotted"]
    assert await call(evals.aread_result, "r", "slotted") == BenchmarkResult("slotted", 1.0, 1, 1)
    with pytest.raises(InvalidInputError, match="idx"):
        await call(evals.awrite_trajectory, "r", "b", SimpleNamespace(benchmark="b"))
    with pytest.raises(UnstorableValueError):
        await call(evals.awrite_trajectory, "r", "b", StoredTrajectory(5, "b", logs={"k": object()}))
    assert len(await call(evals.aread_trajectories, "r", "b")) == 5


# ---- deleting


async def test_deleting_leaves_nothing(evals: EvalStore, folder: RunFolder, call: Call) -> None:
    """Not what an interrupted run left either, nor a folder; again is no error, and others stay."""
    kept = await call(evals.acreate_run, "model", ["a"])
    gone = await call(evals.acreate_run, "model", ["a", "b"])
    await call(evals.awrite_result, gone, BenchmarkResult("a", 1.0, 1, 1))
    await call(evals.awrite_trajectory, gone, "b", StoredTrajectory(0, "b"))
    await call(evals.awrite_summary, gone, {})
    folder.put(f"runs/{gone}/b/deeper/notes.txt", b"")
    for _ in range(2):
        await call(evals.adelete_run, gone)
        assert not (folder.root / "runs" / gone).exists()
        assert [run.run_id for run in await call(evals.alist_runs)] == [kept]
    assert len(folder.get("runs.jsonl").splitlines()) == 2
    await call(evals.awrite_trajectory, "interrupted", "a", StoredTrajectory(0, "a"))
    await call(evals.adelete_run, "interrupted")
    assert not (folder.root / "runs" / "interrupted").exists()
    await call(evals.adelete_run, "never there")


async def test_deleting_follows_no_link(
    evals: EvalStore, folder: RunFolder, tmp_path: Path, call: Call
) -> None:
    """Of a link in a run, and of a run that is one, only the link goes."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("metadata.json", "result.json"):
        (outside / name).write_text("{}")
    run_id = await call(evals.acreate_run, "model", [])
    (folder.root / "runs" / run_id / "linked").symlink_to(outside)
    (folder.root / "runs" / "other").symlink_to(outside)
    await call(evals.adelete_run, run_id)
    await call(evals.adelete_run, "other")
    assert list((folder.root / "runs").iterdir()) == []
    assert sorted(path.name for path in outside.iterdir()) == ["metadata.json", "result.json"]


# ---- names, places


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_bad_names_are_refused_before_io(
    evals: EvalStore, folder: RunFolder, call: Call, name: str
) -> None:
    """Ids and benchmarks that would name a folder elsewhere: an `InvalidInputError`, and nothing is made."""
    trajectory, result = StoredTrajectory(0, "b"), BenchmarkResult(name, 1.0, 1, 1)
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: call(evals.acreate_run, "model", [], run_id=name),
        lambda: call(evals.acreate_run, "model", ["fine", name]),
        lambda: call(evals.acreate_run, "model", "gsm8k"),
        lambda: call(evals.aread_run, name),
        lambda: call(evals.afinalize_run, name),
        lambda: call(evals.adelete_run, name),
        lambda: call(evals.alist_benchmarks, name),
        lambda: call(evals.aread_summary, name),
        lambda: call(evals.awrite_summary, name, {}),
        lambda: call(evals.awrite_result, "r", result),
        lambda: call(evals.aread_result, "r", name),
        lambda: call(evals.aread_result, name, "b"),
        lambda: call(evals.awrite_trajectory, "r", name, trajectory),
        lambda: call(evals.awrite_trajectory, name, "b", trajectory),
        lambda: call(evals.aread_trajectories, "r", name),
        lambda: call(evals.aread_single_trajectory, "r", name, 0),
    ]  # fmt: skip
    for operation in operations:
        with pytest.raises(InvalidInputError):
            await operation()
    with pytest.raises(InvalidInputError):
        evals.run_dir(name)
    assert not folder.exists()


async def test_a_label_with_slashes_makes_an_id_without(evals: EvalStore, call: Call) -> None:
    """Of a checkpoint's name the generated id keeps what a folder may be called."""
    run_id = await call(evals.acreate_run, "model", [], None, "../org/model")
    assert "/" not in run_id
    assert (await call(evals.aread_run, run_id)).checkpoint_name == "../org/model"


def test_places(tmp_path: Path) -> None:
    """A path, a storage with a prefix, a URI; the local folder of a run; a copy made by pickle."""
    evals = EvalStore(LocalStorage(tmp_path), "x/eval")
    assert evals.run_dir("r") == str(tmp_path / "x" / "eval" / "runs" / "r")
    assert evals.url("runs.jsonl") == EvalStore(f"file://{tmp_path}/x/eval").url("runs.jsonl")
    copy = pickle.loads(pickle.dumps(evals))
    run_id = copy.create_run("model", [])
    assert [run.run_id for run in evals.list_runs()] == [run_id]
