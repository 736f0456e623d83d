"""A trainer that writes a run, dies, resumes from a checkpoint and looks at what it has."""

import asyncio
import json
import sys

from runstore import LocalStorage, TrainingRunStore


def show(label: str, value: object) -> None:
    sys.stdout.write(f"{label}: {json.dumps(value, sort_keys=True, default=str)}\n")


def train(store: TrainingRunStore, first: int, last: int) -> None:
    for step in range(first, last):
        store.write_metrics({"loss": 1 / (step + 1), "text": "…é\u2028", "none": None}, step=step)
        store.write_timing_spans(
            step, [{"name": "sample", "duration": 0.5, "wall_start": step, "wall_end": step + 0.5}]
        )
        if step % 5 == 4:
            store.write_checkpoint({"name": f"{step:06d}", "batch": step, "state_path": f"tinker://{step}"})
            rollouts = [{"group_idx": g, "traj_idx": t, "reward": g / 2} for g in range(2) for t in range(2)]
            store.write_rollouts(step, rollouts)
            store.write_rollouts(step, rollouts[:1], base_name="eval_gsm8k")
            store.write_logtree(step, {"title": f"Iteration {step}", "children": [{"é": 1}]})


def look(store: TrainingRunStore) -> None:
    show("config", store.read_config())
    show("metrics", store.read_metrics())
    show("new", store.read_new_metrics())
    show("keys", sorted(store.metric_keys()))
    show("timing", store.read_timing())
    show("checkpoints", store.read_checkpoints())
    show("rollouts", store.read_rollouts(4))
    show("eval", store.read_rollouts(4, base_name="eval_gsm8k"))
    show("none", [store.read_rollouts(99), store.read_logtree(99), store.list_logtrees(99)])
    show("single", [store.read_single_rollout(4, 1, 0), store.read_single_rollout(4, 7, 0)])
    show("logtree", [store.read_logtree(4), store.list_logtrees(4)])
    for info in store.list_iterations():
        show(
            "iteration",
            [info.iteration, info.has_train_rollouts, info.has_train_logtree, info.eval_labels],
        )


async def look_again(store: TrainingRunStore) -> None:
    await store.awrite_metrics({"awaited": True})
    await store.awrite_checkpoint({"name": "final", "final": True})
    show("aconfig", await store.aread_config())
    show("ametrics", await store.aread_metrics())
    show("anew", await store.aread_new_metrics())
    show("arollouts", await store.aread_rollouts(4))
    show("acheckpoints", await store.aread_checkpoints())
    show("atiming", len(await store.aread_timing()))
    show("alogtree", await store.aread_logtree(4))


def main() -> None:
    storage = LocalStorage(sys.argv[1])
    store = TrainingRunStore(storage, prefix="runs/first")
    store.write_config({"lr": 0.1, "model": {"name": "qwen"}, "layers": [1, 2]})
    store.write_code_diff("diff --git a/é b/é\n")
    train(store, 0, 8)
    resumed = TrainingRunStore(storage, prefix="runs/first")
    show("dropped", resumed.truncate_metrics(5))
    show("dropped again", resumed.truncate_metrics(5))
    train(resumed, 5, 10)
    look(resumed)
    asyncio.run(look_again(resumed))
    show("url", store.url("metrics.jsonl").replace(storage.root.as_uri(), "ROOT"))
    show("files", storage.list_dir("runs/first"))


if __name__ == "__main__":
    main()
