"""A training that is cut off and taken up again by another process, while this one looks on."""

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from runstore import IncrementalReader, LocalStorage, RunRegistry, TrainingRunStore


def show(label: str, value: object) -> None:
    sys.stdout.write(f"{label}: {json.dumps(value, sort_keys=True)}\n")


def train(store: TrainingRunStore, first: int, last: int, every: int) -> int:
    """Write steps and checkpoints; a process of its own does it."""
    for step in range(first, last):
        store.write_metrics({"loss": 1.0 / (step + 1), "lr": 0.1}, step=step)
        if step % every == 0:
            store.write_rollouts(step, [{"group_idx": 0, "traj_idx": n, "reward": n / 2} for n in range(3)])
            store.write_logtree(step, {"title": f"step {step}", "children": []})
            name = f"{step:06d}"
            store.write_checkpoint({"name": name, "batch": step, "state_path": f"tinker://state/{name}"})
    return last


def last_usable(store: TrainingRunStore) -> dict[str, Any]:
    return [record for record in store.read_checkpoints() if "state_path" in record][-1]


def main() -> None:
    root = Path(sys.argv[1])
    storage = LocalStorage(root)
    store = TrainingRunStore(storage, "run")
    store.write_config({"loss_fn": "ppo", "lr": 0.1})
    reader = IncrementalReader(storage, "run/metrics.jsonl")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        show("trained", pool.apply(train, (store, 0, 8, 5)))
        show("seen", [len(reader.read()), len(store.read_new_metrics()), sorted(store.metric_keys())])
        checkpoint = last_usable(store)
        show("resume from", checkpoint)
        batch = checkpoint["batch"]
        show("dropped", store.truncate_metrics(batch + 1))
        show("kept", [record["step"] for record in store.read_metrics()])
        show("trained on", pool.apply(train, (store, batch + 1, 12, 5)))
        store.write_checkpoint({"name": "final", "final": True, "note": "done"})
        show("elsewhere", len(pool.apply(store.read_metrics)))
    steps = [record["step"] for record in store.read_metrics()]
    show("steps", steps)
    copies = [name for name in storage.list_dir("run") if "pre_resume" in name]
    show("copies", copies)
    show("names", [record["name"] for record in store.read_checkpoints()])
    show("extra", store.read_checkpoints()[-1]["note"])
    show("iterations", [info.iteration for info in store.list_iterations()])
    show("rollout", store.read_single_rollout(5, 0, 2))
    show("tree", store.read_logtree(10))
    registry = RunRegistry([storage])
    (run,) = registry.get_runs()
    show("found", [run.run_id, run.iteration_count, run.has_checkpoints, run.training_type])
    show("through it", len(registry.get_training_store("run").read_metrics()) == len(steps))


if __name__ == "__main__":
    main()
