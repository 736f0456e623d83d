"""Every method in one thread: in place for a sync caller, one hop for an async one."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runstore import LocalStorage, TrainingRunStore
from runstore.storage import _bridge
from runstore.storage._bridge import drive
from tests.stores.helpers import RunFolder, twin_of

# Every async method, with arguments with which it does all of its work.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "awrite_config": ({"lr": 0.1},),
    "aread_config": (),
    "awrite_metrics": ({"loss": 0.5}, 1),
    "aread_metrics": (),
    "aread_new_metrics": (),
    "aread_metrics_by_step": (),
    "asnapshot_metrics": (),
    "atruncate_metrics": (1,),
    "awrite_timing_spans": (1, [{"name": "a"}]),
    "aread_timing": (),
    "awrite_checkpoint": ({"name": "a"},),
    "aread_checkpoints": (),
    "aread_checkpoint_records": (),
    "afind_checkpoint": ("a",),
    "awrite_rollouts": (1, [{"group_idx": 0, "traj_idx": 0, "text": "x" * 300_000}] * 3),
    "aread_rollouts": (1,),
    "aread_single_rollout": (1, 0, 0),
    "awrite_logtree": (1, {"title": "t"}),
    "aread_logtree": (1,),
    "alist_logtrees": (1,),
    "alist_iterations": (),
    "awrite_code_diff": ("diff",),
}
FOLLOWERS = {"afollow_metrics", "afollow_timing"}


def test_every_async_method_is_tried_here() -> None:
    """The table names every coroutine method of the store, and nothing else."""
    methods = {
        name
        for name, method in inspect.getmembers(TrainingRunStore, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert methods == ARGUMENTS.keys()
    assert all(callable(getattr(TrainingRunStore, name)) for name in FOLLOWERS)


def expected_of(name: str) -> object:
    """What a method gives, the methods being called in the order of the table."""
    results: dict[str, object] = {
        "aread_config": {"lr": 0.1},
        "aread_metrics": [{"step": 1, "loss": 0.5}],
        "aread_new_metrics": [],
        "aread_metrics_by_step": [{"step": 1, "loss": 0.5}],
        "atruncate_metrics": 1,
        "aread_timing": [{"step": 1, "spans": [{"name": "a"}]}],
        "aread_checkpoints": [{"name": "a"}],
        "alist_logtrees": ["train"],
        "aread_logtree": {"title": "t"},
    }
    return results.get(name, ...)


def check_all(run_one: Callable[[TrainingRunStore, str], Any], store: TrainingRunStore) -> None:
    for name in ARGUMENTS:
        result = run_one(store, name)
        expected = expected_of(name)
        assert expected is ... or result == expected, name
        if name.startswith("awrite"):
            assert result is None, name


def drive_one(store: TrainingRunStore, name: str) -> Any:
    return drive(getattr(store, name), *ARGUMENTS[name])


def call_sync(store: TrainingRunStore, name: str) -> Any:
    return twin_of(getattr(store, name))(*ARGUMENTS[name])


@pytest.mark.parametrize("run_one", [drive_one, call_sync])
def test_nothing_suspends_without_a_loop(
    store: TrainingRunStore, run_one: Callable[[TrainingRunStore, str], Any]
) -> None:
    """Each method ends in the calling thread, where no event loop runs."""
    check_all(run_one, store)


@pytest.mark.anyio
@pytest.mark.parametrize("run_one", [drive_one, call_sync])
async def test_e01_nothing_suspends_inside_a_running_loop(
    store: TrainingRunStore, run_one: Callable[[TrainingRunStore, str], Any]
) -> None:
    """Each sync call works inside `async def main`, and an awaited one after it too."""
    check_all(run_one, store)
    await store.awrite_metrics({"loss": 0.25}, 2)
    assert await store.aread_new_metrics() == [{"step": 2, "loss": 0.25}]


@pytest.mark.parametrize("run_one", [drive_one, call_sync])
def test_nothing_suspends_on_an_empty_or_missing_run(
    run: RunFolder, store: TrainingRunStore, run_one: Callable[[TrainingRunStore, str], Any]
) -> None:
    """Each reading method ends in place where there is no file, and where files are empty or damaged."""
    reading = [name for name in ARGUMENTS if not name.startswith("awrite")]
    for name in reading:
        assert not run_one(store, name), name
    assert not run.exists()
    for data in (b"", b"\n\n", b'{"n": 1}\n{"torn": ', b"x\n" * 20_000):
        for name in ("metrics.jsonl", "timing_spans.jsonl", "checkpoints.jsonl"):
            run.put(name, data)
        run.put("iteration_000001/train_rollout_summaries.jsonl", data)
        for name in reading:
            if name not in {"aread_config", "aread_logtree"}:
                run_one(TrainingRunStore(run), name)


def test_a_sync_call_stays_in_its_thread(store: TrainingRunStore) -> None:
    """No sync call on local files starts a thread."""
    started = []
    inner = threading.Thread.start

    def noted(self: threading.Thread) -> None:
        started.append(self.name)
        inner(self)

    threading.Thread.start = noted  # type: ignore[method-assign]
    try:
        check_all(call_sync, store)
    finally:
        threading.Thread.start = inner  # type: ignore[method-assign]
    assert started == []


# How many hops a method makes: one a storage operation.
HOPS: dict[str, int] = {
    "awrite_config": 1,
    "aread_config": 0,  # kept by the write
    "awrite_metrics": 1,
    "aread_metrics": 1,
    "aread_new_metrics": 1,
    "aread_metrics_by_step": 1,
    "asnapshot_metrics": 1,
    "atruncate_metrics": 4,  # read; is the copy's name free; write the copy; write the file
    "awrite_timing_spans": 1,
    "aread_timing": 1,
    "awrite_checkpoint": 1,
    "aread_checkpoints": 1,
    "aread_checkpoint_records": 1,
    "afind_checkpoint": 1,
    "awrite_rollouts": 1,
    "aread_rollouts": 2,  # is it what is kept; read
    "aread_single_rollout": 1,
    "awrite_logtree": 1,
    "aread_logtree": 1,
    "alist_logtrees": 1,
    "alist_iterations": 2,  # the folders; the files in them
    "awrite_code_diff": 1,
}


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is sent to a thread for an operation."""
    sent: list[str] = []
    pool = _bridge._shared.operations
    start = pool.start

    def noted(call: Callable[[], Callable[[], object]]) -> None:
        sent.append(repr(call))
        start(call)

    monkeypatch.setattr(pool, "start", noted)
    return sent


@pytest.mark.anyio
async def test_f01_one_hop_an_operation(store: TrainingRunStore, hops: list[str]) -> None:
    """Each storage operation of an async method is one hop to a thread, with whatever it opens and reads."""
    for name, arguments in ARGUMENTS.items():
        hops.clear()
        await getattr(store, name)(*arguments)
        assert len(hops) == HOPS[name], name


@pytest.mark.anyio
async def test_f01_one_hop_for_a_large_file(run: RunFolder, store: TrainingRunStore, hops: list[str]) -> None:
    """200,000 lines are a hop a fetch, not one a line; an idle poll is one hop; 1,000 appends are a few."""
    data = b'{"step":1,"n":1}\n' * 200_000
    run.put("metrics.jsonl", data)
    assert len(await store.aread_metrics()) == 50_000
    assert len(hops) <= len(data) // LocalStorage.fetch_size + 2
    hops.clear()
    assert await store.aread_new_metrics() == []
    assert len(hops) == 1
    hops.clear()
    await asyncio.gather(*(store.awrite_metrics({"n": n}) for n in range(1_000)))
    assert len(hops) <= 3
    hops.clear()
    assert [record["n"] for record in await store.aread_new_metrics()] == list(range(1_000))
    assert len(hops) == 1


@pytest.mark.anyio
async def test_f01_awaited_appends_are_one_hop_each(store: TrainingRunStore, hops: list[str]) -> None:
    """2,000 appends, each awaited before the next, are 2,000 hops."""
    for step in range(2_000):
        await store.awrite_metrics({"loss": 0.5}, step)
    assert len(hops) == 2_000
    assert [record["step"] for record in await store.aread_metrics()] == list(range(2_000))


@pytest.mark.anyio
async def test_f01_a_list_of_iterations_costs_two_hops_however_many(
    run: RunFolder, store: TrainingRunStore, hops: list[str]
) -> None:
    """500 iterations of 4 files each are listed in as many hops as one."""
    for iteration in range(500):
        for name in ("train_logtree.json", "train_rollout_summaries.jsonl", "a", "b"):
            run.put(f"iteration_{iteration:06d}/{name}", b"")
    assert len(await store.alist_iterations()) == 500
    assert len(hops) == 2


class Noting(LocalStorage):
    """Notes which operations are called."""

    def __init__(self, root: RunFolder) -> None:
        super().__init__(root, mkdir=False)
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if inspect.iscoroutinefunction(value):
            self.called.append(name)
        return value


@pytest.mark.anyio
async def test_reading_metrics_is_one_operation(run: RunFolder) -> None:
    """A poll asks the storage once, and for nothing but the range it needs."""
    storage = Noting(run)
    store = TrainingRunStore(storage)
    await store.awrite_metrics({}, 1)
    await store.aread_metrics()
    storage.called.clear()
    polls: list[Awaitable[Any]] = [store.aread_metrics(), store.aread_new_metrics()]
    for poll in polls:
        await poll
    assert storage.called == ["aread_range", "aread_range"]
