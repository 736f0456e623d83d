"""`runstore ls`, and what `runstore show` says of evaluations."""

import json
import os
from pathlib import Path

import pytest

from runstore import BenchmarkResult, EvalStore, TrainingRunStore
from tests.commands import runstore, tree_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs: one ended, one is old, one is deeper."""
    root = tmp_path / "runs"
    ended = TrainingRunStore(root / "ended")
    ended.write_config({"loss_fn": "ppo"})
    for step in range(2_000):
        ended.write_metrics({"loss": 1 / (step + 1), "reward": float("nan"), "note": "x" * 50}, step)
    ended.write_checkpoint({"name": "final"})
    old = TrainingRunStore(root / "old")
    old.write_metrics({"acc": 0.5}, 3)
    with (root / "old" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "ac')
    os.utime(root / "old" / "metrics.jsonl", (0, root.stat().st_mtime - 3 * 86_400 - 60))
    TrainingRunStore(root / "sweep" / "deep").write_metrics({"loss": 1})
    return root


def test_a_line_for_each_run(root: Path) -> None:
    """Id, status, last step, last metrics, age and place, as a table of plain text in a pipe."""
    before = tree_of(root)
    shown = runstore("ls", root, folder=root)
    assert (shown.returncode, shown.stderr) == (0, "")
    header, _, first, second = [line.split() for line in shown.stdout.splitlines()]
    assert header == ["id", "status", "steps", "last", "metrics", "age", "where"]
    assert first[:7] == ["ended", "completed", "1999", "loss", "0.0005", "reward", "nan"]
    assert first[-1] == f"file://{root}/ended"
    assert second == ["old", "idle", "3", "acc", "0.5", "3", "d", f"file://{root}/old"]
    again = [line.split()[:7] for line in runstore("ls", folder=root).stdout.splitlines()]  # the age goes on
    assert again == [line.split()[:7] for line in shown.stdout.splitlines()]
    assert tree_of(root) == before


def test_json_for_machines(root: Path) -> None:
    """One array, with everything that is known, and NaN as a string."""
    shown = runstore("ls", "--json", "--depth", 2, root, folder=root)
    ended, old, deep = json.loads(shown.stdout)
    assert (ended["id"], ended["status"], ended["step"]) == ("ended", "completed", 1999)
    assert (ended["training_type"], ended["last_metrics"]["reward"]) == ("rl", "NaN")
    assert (old["status"], old["age_seconds"] > 3 * 86_400, old["error"]) == ("idle", True, None)
    assert old["status_reason"].startswith("metrics.jsonl changed")
    assert (deep["id"], deep["step"], deep["last_metrics"]) == ("sweep/deep", None, {"loss": 1})
    assert deep["url"] == f"file://{root}/sweep/deep"


def test_several_roots_and_a_glob(root: Path, tmp_path: Path) -> None:
    """Runs of all roots, of which a glob selects."""
    other = tmp_path / "other"
    TrainingRunStore(other / "old").write_config({})
    shown = runstore("ls", "--json", "--match", "*old", root, other, folder=root)
    assert [run["id"] for run in json.loads(shown.stdout)] == ["old", "other--old"]


def test_a_broken_run_is_listed(root: Path) -> None:
    """With its error where its metrics would be."""
    (root / "old" / "config.json").write_text("[1]")
    shown = runstore("ls", root, folder=root)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("old")]
    assert line.split()[1] == "error"
    assert "old/config.json" in line


def test_nothing_to_list(tmp_path: Path) -> None:
    """An empty folder has no runs; one that is not there is an error, and stays so."""
    assert runstore("ls", folder=tmp_path).stdout == ("no runs (looked 1 level deep; --depth changes that)\n")
    assert runstore("ls", "--json", folder=tmp_path).stdout == "[]\n"
    missing = runstore("ls", "none", folder=tmp_path)
    assert missing.returncode == 1
    assert "none does not exist" in missing.stderr
    assert list(tmp_path.iterdir()) == []


def test_show_tells_of_evaluations(root: Path) -> None:
    """The newest first, with checkpoint and scores; a run without any has no such part."""
    evals = EvalStore(root / "ended" / "eval")
    run_id = evals.create_run("model", ["gsm8k"], checkpoint_name="final")
    evals.write_result(run_id, BenchmarkResult("gsm8k", 0.25, 4, 1))
    evals.finalize_run(run_id)
    shown = runstore("show", root / "ended", folder=root)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"{run_id}  checkpoint final  gsm8k 0.25" in shown.stdout.splitlines()
    assert "Evals" not in runstore("show", root / "old", folder=root).stdout
