"""Rollout summaries through the run store."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from runstore import InvalidInputError, LocalStorage, TrainingRunStore, UnstorableValueError
from runstore.stores import _rollouts
from tests.storages import MemoryStorage
from tests.stores.helpers import Call, RunFolder, turns_of_the_loop

pytestmark = pytest.mark.anyio

FILE = "iteration_000012/train_rollout_summaries.jsonl"
RECORDS = [
    {"group_idx": group, "traj_idx": trajectory, "reward": 0.5, "text": "…\u2028\U0001f600"}
    for group in range(4)
    for trajectory in range(3)
]


def settle(path: Path) -> None:
    """Make a file old enough for its time to tell changes apart."""
    then = time.time() - 60
    os.utime(path, (then, then))


async def test_what_was_written_comes_back(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Records are whole lines of the iteration's file, and come back in order."""
    await call(store.awrite_rollouts, 12, RECORDS)
    assert list(run.files()) == [FILE]
    assert [json.loads(line) for line in run.get(FILE).splitlines()] == RECORDS
    assert await call(store.aread_rollouts, 12) == RECORDS


async def test_base_names_are_files_of_their_own(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """`base_name` is what the file's name begins with, by position and by keyword."""
    await call(store.awrite_rollouts, 12, RECORDS[:1], "eval_gsm8k")
    await call(store.awrite_rollouts, 12, RECORDS[:2], base_name="train")
    assert sorted(run.files()) == ["iteration_000012/eval_gsm8k_rollout_summaries.jsonl", FILE]
    assert len(await call(store.aread_rollouts, 12, base_name="eval_gsm8k")) == 1
    assert len(await call(store.aread_rollouts, 12)) == 2


async def test_a_write_replaces_the_whole_file(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A second write leaves nothing of the first; no records make an empty file."""
    await call(store.awrite_rollouts, 12, RECORDS)
    await call(store.awrite_rollouts, 12, RECORDS[:1])
    assert run.get(FILE).count(b"\n") == 1
    await call(store.awrite_rollouts, 12, [])
    assert run.get(FILE) == b""
    assert await call(store.aread_rollouts, 12) == []


async def test_any_iterable_is_written(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A generator of records is taken."""
    await call(store.awrite_rollouts, 12, (record for record in RECORDS))
    assert run.get(FILE).count(b"\n") == len(RECORDS)


async def test_missing_rollouts_are_an_empty_list(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """No file is `[]`, which is not kept: rollouts that come later are seen."""
    assert await call(store.aread_rollouts, 12) == []
    assert await call(store.aread_single_rollout, 12, 0, 0) is None
    assert not run.exists()
    await call(store.awrite_rollouts, 12, RECORDS)
    assert await call(store.aread_rollouts, 12) == RECORDS


@pytest.mark.parametrize("age", ["young", "old"])
async def test_the_same_object_while_unchanged(
    run: RunFolder, store: TrainingRunStore, call: Call, age: str
) -> None:
    """While the file is unchanged the same list comes back, right after a write and long after it."""
    await call(store.awrite_rollouts, 12, RECORDS)
    if age == "old":
        settle(run.root / FILE)
    first = await call(store.aread_rollouts, 12)
    assert await call(store.aread_rollouts, 12) is first
    assert await call(store.aread_rollouts, 12) is first


async def test_an_old_file_is_not_read_again(
    run: RunFolder, store: TrainingRunStore, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an unchanged file that is older than a few seconds only its size and time are asked for."""
    await call(store.awrite_rollouts, 12, RECORDS)
    settle(run.root / FILE)
    first = await call(store.aread_rollouts, 12)

    async def refused(path: str) -> bytes:
        raise AssertionError(path)

    monkeypatch.setattr(store.storage, "aread", refused)
    assert await call(store.aread_rollouts, 12) is first


async def test_callers_at_once_get_the_same_object(store: TrainingRunStore) -> None:
    """Of many tasks that read at once, each gets the list that later reads give too."""
    await store.awrite_rollouts(12, RECORDS)
    lists = await asyncio.gather(*(store.aread_rollouts(12) for _ in range(10)))
    kept = await store.aread_rollouts(12)
    assert all(records is kept for records in lists)


async def test_own_writes_are_seen_at_once(store: TrainingRunStore, call: Call) -> None:
    """A write through this store is what it reads next, also when size and time stay the same."""
    for reward in range(10):
        await call(store.awrite_rollouts, 12, [{"reward": reward}])
        assert await call(store.aread_rollouts, 12) == [{"reward": reward}]


async def test_a_rewrite_of_equal_size_is_seen(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Another writer's rewrite is seen, though it comes within a tick of the clock and has equal size."""
    other = TrainingRunStore(run)
    for reward in range(10):
        other.write_rollouts(12, [{"reward": reward}])
        assert await call(store.aread_rollouts, 12) == [{"reward": reward}]


async def test_another_process_s_rewrite_is_seen(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A rewrite by another process is seen by the next read, of one record and of all."""
    await call(store.awrite_rollouts, 12, [{"group_idx": 0, "traj_idx": 0, "reward": 1}])
    settle(run.root / FILE)
    first = await call(store.aread_rollouts, 12)
    code = (
        "import sys, runstore\n"
        "runstore.TrainingRunStore(sys.argv[1]).write_rollouts("
        "12, [{'group_idx': 0, 'traj_idx': 0, 'reward': 2}])"
    )
    await anyio.run_process([sys.executable, "-c", code, str(run.root)])
    second = await call(store.aread_rollouts, 12)
    assert second == [{"group_idx": 0, "traj_idx": 0, "reward": 2}]
    assert first == [{"group_idx": 0, "traj_idx": 0, "reward": 1}]
    assert await call(store.aread_single_rollout, 12, 0, 0) == second[0]


async def test_a_deleted_file_has_no_rollouts(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """What was kept of a file that is gone is not given any more."""
    await call(store.awrite_rollouts, 12, RECORDS)
    await call(store.aread_rollouts, 12)
    await call(store.storage.aremove, FILE)
    assert await call(store.aread_rollouts, 12) == []


async def test_a_single_rollout(store: TrainingRunStore, call: Call) -> None:
    """The record of that group and trajectory, the first one if there are two, or `None`."""
    doubled = [*RECORDS, RECORDS[0] | {"reward": 9}]
    await call(store.awrite_rollouts, 12, doubled)
    await call(store.awrite_rollouts, 12, RECORDS[:1], "eval_a")
    assert await call(store.aread_single_rollout, 12, 2, 1) == RECORDS[7]
    assert await call(store.aread_single_rollout, 12, 0, 0) == RECORDS[0]
    assert await call(store.aread_single_rollout, 12, 2, 9) is None
    assert await call(store.aread_single_rollout, 12, 2, 1, "eval_a") is None
    assert await call(store.aread_single_rollout, 12, 0, 0, base_name="eval_a") == RECORDS[0]


class Counting(LocalStorage):
    """Counts the bytes that are read."""

    read_bytes = 0

    async def aread(self, path: str) -> bytes:
        data = await super().aread(path)
        self.read_bytes += len(data)
        return data

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = await super().aread_range(path, offset, length)
        self.read_bytes += len(data)
        return data


async def test_a_single_rollout_stops_reading_when_it_is_found(run: RunFolder, call: Call) -> None:
    """Of a 40 MB file only the beginning is read for a record near it, and all for the last one."""
    lines = [b'{"group_idx":%d,"traj_idx":0,"text":"%b"}\n' % (n, b"x" * 100_000) for n in range(400)]
    run.put(FILE, b"".join(lines))
    storage = Counting(run)
    store = TrainingRunStore(storage)
    found = await call(store.aread_single_rollout, 12, 3, 0)
    assert found is not None
    assert found["group_idx"] == 3
    assert storage.read_bytes < 5 * 1024 * 1024
    storage.read_bytes = 0
    assert await call(store.aread_single_rollout, 12, 399, 0) is not None
    assert storage.read_bytes >= sum(map(len, lines))


async def test_the_cache_is_bounded(
    run: RunFolder, store: TrainingRunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound the least recently used file is dropped; a larger file is never kept."""
    monkeypatch.setattr(_rollouts, "CACHE_BYTES", 3_000)
    for iteration in range(4):
        await store.awrite_rollouts(iteration, [{"n": iteration, "text": "x" * 1_000}])
        settle(run.root / f"iteration_{iteration:06d}/train_rollout_summaries.jsonl")
    zero, one = await store.aread_rollouts(0), await store.aread_rollouts(1)
    assert await store.aread_rollouts(0) is zero
    two = await store.aread_rollouts(2)  # the third: one must go
    assert await store.aread_rollouts(0) is zero
    assert await store.aread_rollouts(2) is two
    again = await store.aread_rollouts(1)
    assert again == one
    assert again is not one
    await store.awrite_rollouts(3, [{"text": "x" * 4_000}])
    settle(run.root / "iteration_000003/train_rollout_summaries.jsonl")
    assert await store.aread_rollouts(3) is not await store.aread_rollouts(3)
    assert await store.aread_rollouts(1) is again


@pytest.mark.parametrize("base_name", ["", "a/b", "../../escape", "a\0b", "/"])
async def test_a_base_name_is_part_of_a_file_name(
    run: RunFolder, store: TrainingRunStore, call: Call, base_name: str
) -> None:
    """A base name that would name no file, or one in another folder, is a `ValueError` before any I/O."""
    with pytest.raises(InvalidInputError, match="base_name"):
        await call(store.awrite_rollouts, 1, RECORDS, base_name)
    with pytest.raises(InvalidInputError, match="base_name"):
        await call(store.aread_rollouts, 1, base_name)
    with pytest.raises(InvalidInputError, match="base_name"):
        await call(store.aread_single_rollout, 1, 0, 0, base_name)
    with pytest.raises(InvalidInputError, match="base_name"):
        await call(store.awrite_logtree, 1, {}, base_name)
    with pytest.raises(InvalidInputError, match="base_name"):
        await call(store.aread_logtree, 1, base_name)
    assert not run.exists()


@pytest.mark.parametrize(("iteration", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
async def test_an_iteration_is_a_number_from_zero(
    run: RunFolder, store: TrainingRunStore, call: Call, iteration: Any, error: type[Exception]
) -> None:
    """A negative number is a `ValueError`, anything but an integer a `TypeError`, before any I/O."""
    with pytest.raises(error):
        await call(store.awrite_rollouts, iteration, RECORDS)
    with pytest.raises(error):
        await call(store.aread_rollouts, iteration)
    with pytest.raises(error):
        await call(store.aread_single_rollout, iteration, 0, 0)
    with pytest.raises(error):
        await call(store.awrite_logtree, iteration, {})
    with pytest.raises(error):
        await call(store.aread_logtree, iteration)
    with pytest.raises(error):
        await call(store.alist_logtrees, iteration)
    assert not run.exists()


async def test_a_number_of_more_than_six_digits(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Six digits are a padding, not a limit."""
    await call(store.awrite_rollouts, 1_234_567, RECORDS[:1])
    assert list(run.files()) == ["iteration_1234567/train_rollout_summaries.jsonl"]
    assert await call(store.aread_rollouts, 1_234_567) == RECORDS[:1]


async def test_an_unstorable_rollout_leaves_the_file_as_it_was(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """Everything is encoded before the file is touched."""
    await call(store.awrite_rollouts, 12, RECORDS)
    before = run.get(FILE)
    with pytest.raises(UnstorableValueError, match=r"\['reward'\]"):
        await call(store.awrite_rollouts, 12, [{"reward": 1}, {"reward": object()}])
    no_records: Any = {"not": "a list of records"}
    with pytest.raises(UnstorableValueError, match="must be a list of records, not dict"):
        await call(store.awrite_rollouts, 12, no_records)
    assert run.get(FILE) == before
    assert await call(store.aread_rollouts, 12) == RECORDS


async def test_g05_half_an_emoji_costs_nothing(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """One of 64 rollouts ends in half an emoji: all 64 are stored and come back, here and elsewhere."""
    records = [{"group_idx": n, "traj_idx": 0, "text": "ok"} for n in range(64)]
    records[17]["text"] = "cut \ud83d"
    await call(store.awrite_rollouts, 12, records)
    assert await call(store.aread_rollouts, 12) == records
    assert [json.loads(line) for line in run.get(FILE).splitlines()] == records
    assert await call(store.aread_single_rollout, 12, 17, 0) == records[17]


async def test_damaged_lines_are_skipped_and_reported_once_a_read(
    run: RunFolder, store: TrainingRunStore, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage costs the damaged lines only, with one warning that says where the first is."""
    run.put(FILE, b'{"n":1}\n{"n":2\nversion https://git-lfs.github.com/spec/v1\n{"n":3}\n')
    assert [record["n"] for record in await call(store.aread_rollouts, 12)] == [1, 3]
    (message,) = caplog.messages
    assert "skipped 2 malformed line(s), the first is line 2 at byte 8" in message
    assert store.url(FILE) in message


@pytest.mark.usefixtures("no_stretch")
async def test_a_large_file_leaves_the_loop_free() -> None:
    """Writing and reading 20 MB of rollouts may give the loop its turn every few hundred kilobytes.

    The storage here never waits, so that every turn is one that the store gave.
    """
    store = TrainingRunStore(MemoryStorage("a large file"))
    records = [{"group_idx": n, "traj_idx": 0, "text": "word " * 4_000} for n in range(1_000)]
    _, turns = await turns_of_the_loop(store.awrite_rollouts(12, records))
    assert turns > 60
    read, turns = await turns_of_the_loop(store.aread_rollouts(12))
    assert read == records
    assert turns > 120


@pytest.mark.parametrize("records", [{"group_idx": 0}, None, 5])
async def test_rollouts_are_a_list(run: RunFolder, store: TrainingRunStore, call: Call, records: Any) -> None:
    """One record by itself, or nothing, is refused before anything is written."""
    with pytest.raises(UnstorableValueError, match="a list of records, not"):
        await call(store.awrite_rollouts, 1, records)
    assert not run.exists()
