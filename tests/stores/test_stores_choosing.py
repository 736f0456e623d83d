"""The checkpoint to go on from, and rollouts one by one."""

import contextlib
import itertools
import json
import tracemalloc
from pathlib import Path

import pytest

from runstore import CheckpointRecord, InvalidInputError, TrainingRunStore
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio


async def chosen(store: TrainingRunStore, call: Call, *args: str, **options: object) -> str | None:
    record = await call(store.afind_checkpoint, *args, **options)  # type: ignore[arg-type]
    return None if record is None else f"{record.name} {record.state_path}"


async def test_the_last_or_the_final_checkpoint(store: TrainingRunStore, run: RunFolder, call: Call) -> None:
    """Without arguments the final one, else the last line that is whole; of one name the last line."""
    assert await chosen(store, call) is None
    rows = [("000010", 1), ("000020", 2), ("000010", 3)]
    for name, path in rows:
        store.write_checkpoint(CheckpointRecord(name, state_path=str(path)))
    assert await chosen(store, call) == "000010 3"
    assert await chosen(store, call, "000020") == "000020 2"
    assert await chosen(store, call, "000010") == "000010 3"
    assert await chosen(store, call, "none") is None
    store.write_checkpoint({"name": "final", "state_path": "4"})
    store.write_checkpoint({"name": "000040", "state_path": "5"})
    with (run.root / "checkpoints.jsonl").open("ab") as file:
        file.write(b'{"name": "000050", "state_pa')
    assert await chosen(store, call) == "final 4"


async def test_the_best_checkpoint_by_a_metric(store: TrainingRunStore, call: Call) -> None:
    """The last value at or before a checkpoint counts, of a step the later run's; of equals the latest."""
    for step, reward in ((0, 0.1), (10, 0.9), (20, 0.5), (10, 0.2), (30, float("nan")), (40, 0.5)):
        store.write_metrics({"reward": reward, "other": "text"}, step)
    store.write_metrics({"loss": 1.0}, 45)
    for batch in (10, 25, 35, 44):
        store.write_checkpoint(CheckpointRecord(f"{batch}", batch=batch))
    store.write_checkpoint({"name": "no batch"})
    assert await chosen(store, call, best="reward") == "44 None"
    assert await chosen(store, call, best="reward", lowest=True) == "10 None"
    for metric in ("other", "loss"):
        assert await chosen(store, call, best=metric) is None
    with pytest.raises(InvalidInputError, match="has the metric 'rewards'; there is reward"):
        await chosen(store, call, best="rewards")
    with pytest.raises(InvalidInputError, match="both"):
        await chosen(store, call, "44", best="reward")
    with pytest.raises(InvalidInputError, match="lowest"):
        await call(store.afind_checkpoint, lowest=True)


async def test_rollouts_one_by_one(store: TrainingRunStore, run: RunFolder, call: Call) -> None:
    """They are what reading them all gives, malformed lines left out; a missing file has none."""
    lines = [json.dumps({"group_idx": n, "text": "x" * 1_000}) for n in range(500)]
    lines.insert(3, "torn")
    run.put("iteration_000001/eval_a_rollout_summaries.jsonl", "\n".join(lines).encode())
    expected = await call(store.aread_rollouts, 1, "eval_a")
    assert len(expected) == 500
    if call.colour == "async":
        assert [record async for record in store.aiter_rollouts(1, base_name="eval_a")] == expected
        assert [record async for record in store.aiter_rollouts(2)] == []
    else:
        assert list(store.iter_rollouts(1, base_name="eval_a")) == expected
        assert list(store.iter_rollouts(2)) == []
    for iterate in (store.aiter_rollouts, store.iter_rollouts):
        with pytest.raises(InvalidInputError):
            iterate(-1)
        with pytest.raises(InvalidInputError):
            iterate(1, "a/b")


async def test_leaving_early(store: TrainingRunStore, call: Call) -> None:
    """An iterator that was left can be closed, and the file read again."""
    store.write_rollouts(1, ({"group_idx": n} for n in range(10)))
    async with contextlib.aclosing(store.aiter_rollouts(1)) as records:
        assert (await anext(records))["group_idx"] == 0
    with contextlib.closing(store.iter_rollouts(1)) as in_turn:
        assert [record["group_idx"] for record in itertools.islice(in_turn, 3)] == [0, 1, 2]
    assert len(store.read_rollouts(1)) == 10


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Of 64 MB of rollouts a few are in memory at a time."""
    store = TrainingRunStore(tmp_path)
    path = tmp_path / "iteration_000001" / "train_rollout_summaries.jsonl"
    path.parent.mkdir()
    line = json.dumps({"group_idx": 0, "text": "x" * 100_000}) + "\n"
    with path.open("w") as file:
        for _ in range(640):
            file.write(line)
    tracemalloc.start()
    count = sum(1 for _ in store.iter_rollouts(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 640
    assert peak < 8_000_000
