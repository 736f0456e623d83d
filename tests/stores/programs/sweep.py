"""A sweep on two disks: runs are written, found, looked at from another process, and found again."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from runstore import LocalStorage, RunRegistry, Storage, TrainingRunStore, storage_join

CONFIGS = {
    "a_rl": {"loss_fn": "ppo", "lr": 0.1},
    "b_sl": {"num_epochs": 2},
    "c_dpo": {"dpo_beta": 0.1, "loss_fn": "dpo"},
    "d_builder": {"dataset_builder": {"__type__": "recipes.MathRLBuilder"}},
    "e_none": {"lr": 0.1},
}


def show(label: str, value: object) -> None:
    sys.stdout.write(f"{label}: {json.dumps(value, sort_keys=True)}\n")


def train(storage: Storage, name: str, steps: int) -> None:
    store = TrainingRunStore(storage, name)
    store.write_config(CONFIGS[name])
    for step in range(steps):
        store.write_metrics({"loss": 1.0 / (step + 1)}, step=step)
    store.write_timing_spans(0, [{"name": "sample", "duration": 0.5, "wall_start": 1.0, "wall_end": 1.5}])
    store.write_rollouts(0, [{"group_idx": 0, "traj_idx": 0}])
    store.write_rollouts(steps, [])
    if name != "b_sl":
        store.write_checkpoint({"name": f"{steps:06d}", "batch": steps, "final": name == "a_rl"})


def grow_old(root: Path) -> None:
    old = time.time() - 86_400
    for path in root.rglob("*"):
        os.utime(path, (old, old))


def describe(registry: RunRegistry) -> list[object]:
    return [
        [
            run.run_id, run.prefix, run.has_config, run.has_metrics, run.has_checkpoints, run.has_timing,
            run.iteration_count, run.status, run.training_type,
        ]
        for run in registry.get_runs()
    ]  # fmt: skip


def main() -> None:
    root = Path(sys.argv[1])
    first, second = LocalStorage(root / "first"), LocalStorage(root / "second")
    for number, name in enumerate(CONFIGS):
        train(first, name, number + 1)
    (root / "first" / "not_a_run").mkdir()
    (root / "first" / "notes.txt").write_text("text")
    train(second, "a_rl", 2)
    grow_old(root)
    registry = RunRegistry([first])
    show("count", [registry.storage_count, registry.primary_storage is first])
    for row in describe(registry):
        show("run", row)
    show("unknown", registry.get_run("nothing"))
    store = registry.get_training_store("c_dpo")
    show("same store", store is registry.get_training_store("c_dpo"))
    show("metrics", store.read_metrics())
    show("evals", registry.get_eval_store())
    TrainingRunStore(first, "e_none").write_metrics({"loss": 0.0}, step=9)
    train(first, "b_sl", 1)
    show("before refresh", registry.get_run("b_sl") is not None)
    show("refreshed", sorted(run.run_id for run in registry.refresh() if run.status == "running"))
    show("new store", store is registry.get_training_store("c_dpo"))
    both = RunRegistry([first, second])
    show("two", [len(both.get_runs()), both.get_run("second--a_rl") is not None])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        copy = pool.apply(RunRegistry, ([first, second],))
        show("elsewhere", len(pool.apply(describe, (copy,))))
        show("its store", len(pool.apply(both.get_training_store("second--a_rl").read_metrics)))
    show("owner", both.storage_for("second--a_rl") is second)
    show("joined", storage_join(both.get_training_store("second--a_rl").prefix, "config.json"))


if __name__ == "__main__":
    main()
