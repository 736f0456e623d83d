"""Programs and run folders of `tinker_cookbook.stores`: both work here unchanged, and the other way round."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runstore import CheckpointRecord, IterationInfo, TrainingRunStore
from tests.stores.helpers import RunFolder

PROGRAMS = Path(__file__).parent / "programs"
PEER = "tinker_cookbook.stores"
SAMPLES = Path(os.environ.get("RUNSTORE_SAMPLE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def run_program(name: str, package: str, folder: Path) -> list[str]:
    """What a program prints, with its import line naming `package`."""
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    changed = source.replace("from runstore import", f"from {package} import")
    if package == PEER:  # which does not re-export its evaluation store
        own_line = f"from {PEER}.eval_store import EvalStore\nfrom {PEER} import "
        changed = changed.replace(f"from {PEER} import EvalStore, ", own_line)
    assert source.count("runstore") == 1
    script = folder / f"{name}.py"
    script.write_text(changed, encoding="utf-8")
    data = folder / "data"
    data.mkdir()
    finished = subprocess.run(
        [sys.executable, script, data], capture_output=True, text=True, timeout=50, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def records_in(folder: Path) -> dict[str, Any]:
    """The files below a folder, each as the values that it holds."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            files[str(path.relative_to(folder))] = json.loads(path.read_bytes())
        elif path.is_file():
            lines = path.read_text(encoding="utf-8").split("\n")
            files[str(path.relative_to(folder))] = [
                json.loads(line) if line.startswith("{") else line for line in lines
            ]
    return files


@pytest.mark.parametrize("name", ["trainer", "dashboard", "custom_storage", "sweep", "evaluate", "resume"])
def test_a_program_prints_what_it_printed(name: str, tmp_path: Path) -> None:
    """A program prints what it did with the model; where that is installed, it is run with it too."""
    ours = tmp_path / "ours"
    ours.mkdir()
    printed = run_program(name, "runstore", ours)
    expected = (PROGRAMS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert printed == expected
    if importlib.util.find_spec("tinker_cookbook") is None:
        return
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    assert run_program(name, PEER, theirs) == expected
    if name not in {"custom_storage", "evaluate"}:  # the one keeps no files, the other the time of day
        assert records_in(ours / "data") == records_in(theirs / "data")


# A run folder, byte for byte as the model writes it: json.dumps with its defaults.
PEER_FOLDER = {
    "config.json": b'{\n  "lr": 0.1,\n  "name": "caf\\u00e9",\n  "none": null\n}',
    "metrics.jsonl": (
        b'{"step": 0, "loss": NaN, "text": "\\ud83d\\ude00 \\u2028"}\n'
        b'{"step": 1, "loss": -Infinity, "big": 18446744073709551615}\n'
        b'{"loss": Infinity}\n'
    ),
    "timing_spans.jsonl": (
        b'{"step": 0, "spans": [{"name": "a", "duration": 0.5, "wall_start": 1.0, "wall_end": 1.5}]}\n'
    ),
    "checkpoints.jsonl": (
        b'{"name": "000001", "batch": 1, "epoch": 0, "state_path": "tinker://s", "loop": {"k": [1]}}\n'
        b'{"name": "final", "final": true, "sampler_path": "tinker://p"}\n'
    ),
    "code.diff": "-é\n".encode(),
    "iteration_000001/train_rollout_summaries.jsonl": (
        b'{"group_idx": 0, "traj_idx": 0, "text": "\\ud83d"}\n{"group_idx": 0, "traj_idx": 1}\n'
    ),
    "iteration_000001/eval_gsm8k_rollout_summaries.jsonl": b"",
    "iteration_000001/train_logtree.json": b'{\n  "title": "t",\n  "children": []\n}',
}


def check_peer_folder(store: TrainingRunStore) -> None:
    assert store.read_config() == {"lr": 0.1, "name": "café", "none": None}
    first, second, third = store.read_metrics()
    assert math.isnan(first["loss"])
    assert first["text"] == "\U0001f600 \u2028"
    assert second == {"step": 1, "loss": -math.inf, "big": 2**64 - 1}
    assert third == {"loss": math.inf}
    assert store.metric_keys() == {"loss", "text", "big"}
    assert store.read_timing()[0]["spans"][0]["duration"] == 0.5
    assert [row["name"] for row in store.read_checkpoints()] == ["000001", "final"]
    assert store.read_rollouts(1)[0]["text"] == "\ud83d"
    assert store.read_rollouts(1, "eval_gsm8k") == []
    assert store.read_single_rollout(1, 0, 1) == {"group_idx": 0, "traj_idx": 1}
    assert store.read_logtree(1) == {"title": "t", "children": []}
    (info,) = store.list_iterations()
    assert (info.has_train_rollouts, info.has_train_logtree, info.eval_labels) == (True, True, ["gsm8k"])


def test_a_folder_of_the_model_is_read(run: RunFolder, store: TrainingRunStore) -> None:
    """Every file as the model writes it is read, with the values that its own json gives."""
    for name, data in PEER_FOLDER.items():
        run.put(name, data)
    check_peer_folder(store)
    assert store.read_checkpoint_records() == [
        CheckpointRecord("000001", batch=1, epoch=0, state_path="tinker://s", extra={"loop": {"k": [1]}}),
        CheckpointRecord("final", final=True, sampler_path="tinker://p"),
    ]
    assert store.list_iterations() == [
        IterationInfo(1, has_train_rollouts=True, has_train_logtree=True, eval_labels=["gsm8k"])
    ]
    assert run.files() == PEER_FOLDER


def write_run(store: Any) -> None:
    """A run with values of every kind, by the methods that both sides have."""
    store.write_config({"lr": 0.1, "name": "café", "none": None})
    store.write_metrics({"loss": math.nan, "text": "\U0001f600 \u2028"}, 0)
    store.write_metrics({"loss": -math.inf, "big": 2**64 - 1}, 1)
    store.write_metrics({"loss": math.inf})
    store.write_timing_spans(0, [{"name": "a", "duration": 0.5, "wall_start": 1.0, "wall_end": 1.5}])
    store.write_checkpoint({"name": "000001", "batch": 1})
    store.write_checkpoint({"name": "final", "final": True})
    store.write_rollouts(
        1, [{"group_idx": 0, "traj_idx": 0, "text": "\ud83d"}, {"group_idx": 0, "traj_idx": 1}]
    )
    store.write_rollouts(1, [], "eval_gsm8k")
    store.write_logtree(1, {"title": "t", "children": []})
    store.write_code_diff("-é\n")


def test_a_folder_of_ours_is_read_by_plain_json(run: RunFolder, store: TrainingRunStore) -> None:
    """Each line that is written here is one object to Python's json, after a split as the model does it."""
    write_run(store)
    for name, data in run.files().items():
        text = data.decode()
        if name.endswith(".jsonl"):
            theirs = [json.loads(line) for line in text.splitlines() if line.strip()]
            assert len(theirs) == PEER_FOLDER[name].count(b"\n")
        elif name.endswith(".json"):
            assert json.loads(text) == json.loads(PEER_FOLDER[name])
    assert run.files().keys() == PEER_FOLDER.keys()
    check_peer_folder(TrainingRunStore(run))


def test_each_side_reads_what_the_other_wrote(tmp_path: Path) -> None:
    """With the model installed: it reads our folder, we read its folder, and both go on in one folder."""
    peer = pytest.importorskip(PEER)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_run(TrainingRunStore(ours))
    write_run(peer.TrainingRunStore(peer.LocalStorage(theirs)))
    for folder in (ours, theirs):
        check_peer_folder(TrainingRunStore(folder))
        check_peer_folder(peer.TrainingRunStore(peer.LocalStorage(folder)))
    mine, other = TrainingRunStore(ours), peer.TrainingRunStore(peer.LocalStorage(ours))
    for step in range(2, 12, 2):
        mine.write_metrics({"by": "us"}, step)
        other.write_metrics({"by": "them"}, step + 1)
    assert [record.get("step") for record in mine.read_metrics()] == [0, 1, None, *range(2, 12)]
    assert repr(mine.read_metrics()) == repr(other.read_metrics())
    assert other.truncate_metrics(8) == 4
    assert mine.truncate_metrics(6) == 2
    assert [record.get("step") for record in mine.read_metrics()] == [0, 1, None, 2, 3, 4, 5]
    assert sorted(mine.storage.list_dir("")) == sorted(
        [
            *("checkpoints.jsonl", "code.diff", "config.json", "iteration_000001", "metrics.jsonl"),
            *("metrics.jsonl.pre_resume_000006", "metrics.jsonl.pre_resume_000008", "timing_spans.jsonl"),
        ]
    )


@pytest.mark.parametrize("name", ["sft_run", "rl_run"])
def test_a_real_run_of_the_model(name: str) -> None:
    """A run that the model really wrote: every line is a record, with the values that json gives."""
    folder = SAMPLES / name
    if not folder.exists():
        pytest.skip("no sample data here")
    store = TrainingRunStore(folder)
    for file, records in (
        ("metrics.jsonl", store.read_metrics()),
        ("checkpoints.jsonl", store.read_checkpoints()),
    ):
        lines = (folder / file).read_text(encoding="utf-8").split("\n")
        assert repr(records) == repr([json.loads(line) for line in lines if line])
    steps = [record["step"] for record in store.read_metrics()]
    assert [record["step"] for record in store.read_metrics_by_step()] == sorted(set(steps))
    names = [record.name for record in store.read_checkpoint_records()]
    assert names == [row["name"] for row in store.read_checkpoints()]
    config = folder / "config.json"
    assert store.read_config() == (json.loads(config.read_bytes()) if config.exists() else None)
