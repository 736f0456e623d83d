"""An evaluation of two checkpoints with result types of its own, part of it in another process."""

import json
import multiprocessing
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runstore import EvalStore, LocalStorage, RunRegistry


@dataclass
class Result:
    name: str
    score: float
    num_examples: int
    num_correct: int
    num_errors: int = 0
    num_truncated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    time_seconds: float = 0.0
    pass_at_k: dict[int, float] = field(default_factory=dict)


@dataclass
class Trajectory:
    idx: int
    benchmark: str
    reward: float = 0.0
    turns: list[Any] = field(default_factory=list)
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def show(label: str, value: object) -> None:
    sys.stdout.write(f"{label}: {json.dumps(value, sort_keys=True)}\n")


def evaluate(store: EvalStore, run_id: str, benchmark: str, correct: int) -> None:
    """Write trajectories and the result of a benchmark."""
    turns = [{"role": "user", "content": "?", "token_count": 1, "metadata": {}}]
    for idx in range(4):
        store.write_trajectory(run_id, benchmark, Trajectory(idx, benchmark, float(idx < correct), turns))
    store.write_result(run_id, Result(benchmark, correct / 4, 4, correct, pass_at_k={1: correct / 4}))


def main() -> None:
    root = Path(sys.argv[1])
    store = EvalStore(root / "eval")
    show("empty", [store.list_runs(), store.read_summary("none")])
    first = store.create_run("model", ["gsm8k", "math"], "tinker://a", "000010", {"limit": 4}, "run_a")
    second = store.create_run("model", ["gsm8k"], run_id="run_b")
    show("created", [first, second])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(evaluate, (store, first, "gsm8k", 3))
        pool.apply(evaluate, (EvalStore(LocalStorage(root), "eval"), second, "gsm8k", 1))
    store.write_trajectory(first, "math", Trajectory(0, "math", error="timeout"))
    store.write_summary(first, {"gsm8k": Result("gsm8k", 0.75, 4, 3)})
    show("scores", store.finalize_run(first).scores)
    show("read", [store.read_run(first).checkpoint_name, store.read_run(first).config])
    show("listed", [run.run_id for run in store.list_runs()])
    show("benchmarks", [store.list_benchmarks(first), store.list_benchmarks("none")])
    show("summary", store.read_summary(first))
    lines = (root / "eval" / "runs" / first / "gsm8k" / "trajectories.jsonl").read_text().splitlines()
    show("rewards", [json.loads(line)["reward"] for line in lines])
    show("result", json.loads((root / "eval" / "runs" / first / "gsm8k" / "result.json").read_text()))
    show("folder", Path(store.run_dir(first)).relative_to(root).as_posix())
    index = [json.loads(line) for line in (root / "eval" / "runs.jsonl").read_text().splitlines()]
    show("index", [[row["run_id"], row["model"], row["checkpoint"]] for row in index])
    generated = store.create_run("model", [], checkpoint_name="final")
    show("generated", [generated.startswith("final_"), len(generated.split("_"))])
    for run_id in (generated, first, first):
        store.delete_run(run_id)
    show("left", [[run.run_id for run in store.list_runs()], (root / "eval" / "runs" / first).exists()])
    try:
        store.read_run(first)
    except FileNotFoundError:
        show("gone", first)
    found = RunRegistry([LocalStorage(root)]).get_eval_store()
    show("found", found is not None and [found.prefix, len(found.list_runs())])


if __name__ == "__main__":
    main()
