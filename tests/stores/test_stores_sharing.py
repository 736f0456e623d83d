"""One store in many threads, event loops and processes, pickled at any time."""

import asyncio
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from runstore import TrainingRunStore
from tests.stores.helpers import RunFolder


def fill(store: TrainingRunStore, first: int, count: int) -> None:
    for step in range(first, first + count):
        store.write_metrics({"loss": 0.5}, step)


def steps(records: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in records]


def use_a_little(store: TrainingRunStore) -> None:
    """Fill every cache of a store."""
    store.write_config({"lr": 0.1})
    store.read_config()
    fill(store, 0, 3)
    store.read_metrics()
    store.write_timing_spans(0, [{"name": "a"}])
    store.read_timing()
    store.write_rollouts(0, [{"n": 1}])
    store.read_rollouts(0)


@pytest.mark.parametrize("copied", [lambda store: pickle.loads(pickle.dumps(store)), copy.deepcopy])
def test_a_copy_goes_on_from_the_same_place(
    run: RunFolder, store: TrainingRunStore, copied: Callable[[TrainingRunStore], TrainingRunStore]
) -> None:
    """A copy has what its original had read, and reads on from there; neither moves the other."""
    use_a_little(store)
    other = copied(store)
    fill(store, 3, 2)
    assert steps(other.read_new_metrics()) == [3, 4]
    assert steps(store.read_new_metrics()) == [3, 4]
    assert steps(other.read_metrics()) == [0, 1, 2, 3, 4]
    assert other.metrics_cursor() == store.metrics_cursor()
    assert other.metric_keys() == store.metric_keys() == {"loss"}
    assert other.read_timing() == store.read_timing()
    assert other.read_rollouts(0) == [{"n": 1}]
    assert other.read_config() == {"lr": 0.1}
    assert (other.url(), other.prefix) == (store.url(), store.prefix)


def test_a_fresh_store_is_pickled(tmp_path: Path) -> None:
    """A store that was never used is pickled with its prefix, in every protocol; nothing is created."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(TrainingRunStore(tmp_path / "runs", "a/b"), protocol))
        assert other.url("x") == (tmp_path / "runs/a/b/x").as_uri()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_a_store_is_pickled_while_followers_are_open(store: TrainingRunStore) -> None:
    """Open followers and reads under way do not keep a store from being pickled."""
    store.write_metrics({}, 0)
    follower, sync_follower = store.afollow_metrics(interval=0.05), store.follow_metrics(interval=0.05)
    with anyio.fail_after(20):
        await anext(follower)
        next(sync_follower)
        reading = asyncio.ensure_future(store.aread_metrics())
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        other = pickle.loads(pickle.dumps(store))
        await reading
        await other.awrite_metrics({}, 1)
        assert steps((await waiting).records) == [1]
        assert steps((await asyncio.to_thread(next, sync_follower)).records) == [1]
    assert steps(await other.aread_metrics()) == [0, 1]
    await follower.aclose()
    sync_follower.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_copy_in_another_process_goes_on(store: TrainingRunStore, method: str) -> None:
    """In a child of a process pool the copy goes on from the same offset; its writes are seen here."""
    use_a_little(store)
    fill(store, 3, 2)
    context = multiprocessing.get_context(method)
    with store.follow_metrics() as follower, ProcessPoolExecutor(1, mp_context=context) as pool:
        next(follower)
        assert steps(pool.submit(store.read_new_metrics).result(30)) == [3, 4]
        pool.submit(store.write_metrics, {"loss": 1.0}, 5).result(30)
        assert pool.submit(store.read_config).result(30) == {"lr": 0.1}
    assert steps(store.read_new_metrics()) == [3, 4, 5]


def test_many_threads_share_a_store(store: TrainingRunStore) -> None:
    """Of 8 threads that write and read one store, each record is handed out once, none is lost."""
    ready = threading.Barrier(8)

    def work(number: int) -> list[int]:
        ready.wait(20)
        got: list[int] = []
        for index in range(50):
            store.write_metrics({"thread": number}, number * 1_000 + index)
            got += steps(store.read_new_metrics())
            assert store.read_config() is None
            store.metric_keys()
        return got

    with ThreadPoolExecutor(8) as pool:
        taken = [step for got in pool.map(work, range(8)) for step in got]
    taken += steps(store.read_new_metrics())
    expected = sorted(number * 1_000 + index for number in range(8) for index in range(50))
    assert sorted(taken) == expected
    assert sorted(steps(store.read_metrics())) == expected
    for number in range(8):
        own = [step for step in steps(store.read_metrics()) if step // 1_000 == number]
        assert own == sorted(own)


@pytest.mark.anyio
async def test_many_tasks_share_a_store(store: TrainingRunStore) -> None:
    """Of 20 tasks that write and read one store, each record is handed out once, none is lost."""
    taken: list[int] = []

    async def work(number: int) -> None:
        for index in range(10):
            await store.awrite_metrics({}, number * 100 + index)
            taken.extend(steps(await store.aread_new_metrics()))

    await asyncio.gather(*(work(number) for number in range(20)))
    taken.extend(steps(await store.aread_new_metrics()))
    assert sorted(taken) == sorted(number * 100 + index for number in range(20) for index in range(10))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_d07_one_store_in_one_loop_after_another(
    store: TrainingRunStore, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """`asyncio.run` twice, a sync call, an awaited one and a sync one: all work with one store."""

    async def awaited(step: int) -> list[int]:
        await store.awrite_metrics({}, step)
        await asyncio.gather(*(store.awrite_timing_spans(step, [{"n": n}]) for n in range(5)))
        async with store.afollow_metrics() as follower:
            assert (await anext(follower)).records[0]["step"] == 0
        return steps(await store.aread_metrics())

    def run(step: int) -> list[int]:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(awaited(step))

    assert run(0) == [0]
    assert run(1) == [0, 1]
    store.write_metrics({}, 2)
    assert steps(store.read_metrics()) == [0, 1, 2]
    assert run(3) == [0, 1, 2, 3]
    assert steps(store.read_metrics()) == [0, 1, 2, 3]
    assert len(store.read_timing()) == 15


def test_d07_two_threads_with_a_loop_each(store: TrainingRunStore) -> None:
    """Two loops at once, in two threads, share one store: every record is written, each read once."""
    ready = threading.Barrier(2)

    async def work(number: int) -> list[int]:
        ready.wait(20)
        got: list[int] = []
        for index in range(30):
            await asyncio.gather(
                *(store.awrite_metrics({}, number * 1_000 + index * 10 + n) for n in range(3))
            )
            got += steps(await store.aread_new_metrics())
        return got

    with ThreadPoolExecutor(2) as pool:
        taken = [step for got in pool.map(lambda n: asyncio.run(work(n)), range(2)) for step in got]
    taken += steps(store.read_new_metrics())
    assert sorted(taken) == sorted(
        t * 1_000 + i * 10 + n for t in range(2) for i in range(30) for n in range(3)
    )


FORKING = """
import asyncio, os, sys, threading
from runstore import TrainingRunStore

store = TrainingRunStore(sys.argv[1])
store.write_metrics({}, 0)
store.read_metrics()
follower = store.follow_metrics(interval=0.05)
next(follower)
busy = threading.Thread(
    target=lambda: [store.read_metrics() or store.read_rollouts(0) for _ in range(2_000)], daemon=True
)
busy.start()


def child(number):
    store.write_metrics({"child": number}, number)
    assert any(record["step"] == number for record in store.read_metrics())

    async def awaited():
        await store.awrite_metrics({"child": number}, 10 + number)
        assert any(record["step"] == 10 + number for record in await store.aread_metrics())
        async with store.afollow_metrics(interval=0.05) as own:
            assert (await anext(own)).records[0]["step"] == 0

    asyncio.run(awaited())
    for batch in store.follow_metrics(cursor=None, interval=0.05):
        break


children = []
for number in (1, 2, 3, 4):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(number)
            code = 0
        finally:
            os._exit(code)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert codes == [0, 0, 0, 0], codes
busy.join()
expected = [0, 1, 2, 3, 4, 11, 12, 13, 14]
assert sorted(record["step"] for record in store.read_metrics()) == expected
seen = [0]
for batch in follower:
    seen += [record["step"] for record in batch]
    if len(seen) == len(expected):
        break
assert sorted(seen) == expected, seen
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_e03_forked_children_use_the_store(run: RunFolder, tmp_path: Path) -> None:
    """Forked children of a busy process read, write, await and follow; the parent goes on unharmed."""
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    subprocess.run([sys.executable, script, run], check=True, timeout=50)
