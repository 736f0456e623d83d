"""Event loops, threads and neither: where the two colours of a storage work, and where they refuse."""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import uvloop

from runstore import EventLoopError, LocalStorage, NotFoundError, Storage, TrainingRunStore
from runstore.storage import _bridge, as_storage
from runstore.storage._threads import ThreadPool
from tests.scripts import run, write_script
from tests.storages import MemoryStorage, SyncFolder

# Every async method of a storage with arguments, so that a new one is not forgotten.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "aread": ("f",),
    "aread_range": ("f", 1, 2),
    "awrite": ("g/h", b"1"),
    "aappend": ("f", b"1\n"),
    "aappend_lines": ("f", b"1\n"),
    "aexists": ("f",),
    "astat": ("f",),
    "alist_dir": ("",),
    "ascan": ("",),
    "afind": ("",),
    "awatch": ("f", (1, 2, 3), 0.01),
    "aremove": ("gone",),
    "aremove_dir": ("gone",),
    "aflush": (),
    "aclose": (),
}

WARNINGS = """
    import asyncio, gc, sys
    from pathlib import Path
    from runstore import LocalStorage, TrainingRunStore

    storage = LocalStorage(sys.argv[1])
    store = TrainingRunStore(storage, "run")

    async def main():
        for number in range(100):
            await storage.awrite(f"d/{number}", b"1")
            await storage.aread(f"d/{number}")
        await storage.aclose()
        async with storage:
            await asyncio.gather(*[store.awrite_metrics({"n": n}) for n in range(50)])
            assert len(await store.aread_metrics()) == 50
        cancelled = asyncio.create_task(storage.aread("d/1"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        async for batch in store.afollow_metrics():
            break
        try:
            await storage.aread("missing")
        except FileNotFoundError:
            pass

    asyncio.run(main())
    with storage:
        storage.append("f", b"1")
    with LocalStorage(sys.argv[1]) as other:
        for _ in other.list_dir(""):
            other.read("f")
    for batch in store.follow_metrics():
        break
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for _ in range(100):
        storage.read("f"), storage.write("g", b"1"), storage.append("f", b"1")
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    del storage, store
    gc.collect()
"""


def storages(folder: Path) -> dict[str, Storage]:
    """One of each kind: local files, the I/O loop's, an object with sync methods."""
    (folder / "sync").mkdir()
    return {
        "local": LocalStorage(folder / "local"),
        "io loop": MemoryStorage(str(folder)),
        "sync only": as_storage(SyncFolder(folder / "sync")),
    }


async def until_taken(pool: ThreadPool) -> None:
    """Return when a thread of the pool is at every call that was submitted."""
    async with asyncio.timeout(20):
        while pool._work.qsize():  # noqa: ASYNC110  a thread gives no event when it begins
            await asyncio.sleep(0.001)


def result_of(pool: ThreadPool, function: Callable[[], int]) -> int:
    """What a function returns in a thread of the pool."""
    results: queue.SimpleQueue[int] = queue.SimpleQueue()
    pool.start(lambda: partial(results.put, function()))
    found: int = results.get(timeout=10)
    return found


@pytest.fixture(params=["local", "io loop", "sync only"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A storage of each kind."""
    return storages(tmp_path)[request.param]


# ---- driving


def test_the_arguments_are_those_of_every_async_method() -> None:
    """The table above leaves out no async method of a storage."""
    names = {name for name in dir(Storage) if name.startswith("a") and hasattr(Storage, name[1:])}
    assert names - {"append"} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("kind", ["local", "synced", "sync only"])
def test_no_local_operation_suspends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Driven, every async method of a storage on local files ends in place, inside a loop and outside."""
    pool = ThreadPool("test", 1)
    monkeypatch.setattr(_bridge._shared, "operations", pool)
    storage: Storage = LocalStorage(tmp_path, fsync=kind == "synced")
    if kind == "sync only":
        storage = as_storage(SyncFolder(tmp_path))
    storage.write("f", b"012\n")
    outside = _bridge.drive(getattr(storage, name), *ARGUMENTS[name])

    async def inside() -> Any:
        await asyncio.sleep(0)
        return _bridge.drive(getattr(storage, name), *ARGUMENTS[name])

    again = asyncio.run(inside())
    assert type(again) is type(outside)
    assert pool._threads == 0


def test_what_suspends_while_driven_is_an_error_that_names_it() -> None:
    """A coroutine that waits for a loop under a sync call is closed and reported, not left hanging."""
    closed = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(EventLoopError, match=r"suspends suspended .* please report"):
        _bridge.drive(suspends)
    assert closed == [True]
    assert not _bridge.is_inline()


@pytest.mark.anyio
async def test_sync_inside_async_inside_sync(tmp_path: Path) -> None:
    """Nested sync calls restore the way the outer one works, after errors too."""
    storage = LocalStorage(tmp_path)

    async def outer() -> bytes:
        with pytest.raises(NotFoundError):
            storage.read("missing")
        storage.write("f", b"1")
        return await storage.aread("f")

    assert storage.run_sync(outer) == b"1"
    assert not _bridge.is_inline()
    assert await outer() == b"1"


# ---- loops


def test_d07_a_store_at_module_level_outlives_its_loops(storage: Storage) -> None:
    """One store works in one loop after the other, then sync, then in a loop, then sync."""
    store = TrainingRunStore(storage, "run")
    expected = []
    for number in range(2):
        asyncio.run(store.awrite_metrics({"n": number}))
        expected.append({"n": number})
        assert asyncio.run(store.aread_metrics()) == expected
    store.write_metrics({"n": 2})
    assert asyncio.run(store.aread_new_metrics()) == [{"n": 2}]
    asyncio.run(store.awrite_metrics({"n": 3}))
    assert store.read_new_metrics() == [{"n": 3}]
    uvloop.run(store.awrite_metrics({"n": 4}))
    assert store.read_metrics() == [{"n": n} for n in range(5)]


def test_d07_two_threads_with_a_loop_each(storage: Storage) -> None:
    """Two event loops at once share one store and lose nothing."""
    store = TrainingRunStore(storage, "run")
    failures: list[BaseException] = []
    together = threading.Barrier(2)

    async def work(name: str) -> None:
        for number in range(50):
            await store.awrite_rollouts(number, [{"name": name}], base_name=name)
            assert await store.aread_rollouts(number, base_name=name) == [{"name": name}]
        await asyncio.gather(*[store.awrite_logtree(n, {"name": name}, name) for n in range(50)])

    def target(runner: Callable[[Coroutine[Any, Any, None]], None], name: str) -> None:
        try:
            together.wait(30)
            runner(work(name))
        except BaseException as error:  # noqa: BLE001  the test shows it
            failures.append(error)

    threads = [threading.Thread(target=target, args=pair) for pair in ((asyncio.run, "a"), (uvloop.run, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert failures == []
    assert [info.iteration for info in store.list_iterations()] == list(range(50))
    assert store.list_logtrees(49) == ["a", "b"]


def test_d08_nothing_is_left_open(tmp_path: Path) -> None:
    """Under `-X dev -W error`, reads, closes, a cancelled read and no close at all leave no warning."""
    options = ("-X", "dev", "-W", "error")
    done = run(write_script(tmp_path, WARNINGS), tmp_path / "root", options=options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.anyio
async def test_e01_sync_calls_work_inside_a_running_loop(storage: Storage) -> None:
    """A sync call in a coroutine works, alone and while others are awaited."""
    store = TrainingRunStore(storage, "run")
    store.write_metrics({"n": 0})
    awaited = [asyncio.ensure_future(store.awrite_metrics({"n": n})) for n in range(1, 10)]
    await asyncio.sleep(0)
    store.write_config({"a": 1})
    assert store.read_config() == {"a": 1}
    await asyncio.gather(*awaited)
    assert sorted(record["n"] for record in store.read_metrics()) == list(range(10))
    assert storage.list_dir("run") == ["config.json", "metrics.jsonl"]


def test_e02_a_sync_call_on_the_io_loop_is_refused_at_once(tmp_path: Path) -> None:
    """There it would wait for itself; the error names the twin to await. Local files need no loop."""
    kinds = storages(tmp_path)

    async def call(storage: Storage) -> bytes:
        storage.write("f", b"1")
        return storage.read("f")

    with pytest.raises(EventLoopError, match=r"await awrite\(\.\.\.\) instead"):
        _bridge.spawn_on_io_loop(lambda: call(kinds["io loop"])).result(10)
    for kind in ("local", "sync only"):
        assert _bridge.spawn_on_io_loop(partial(call, kinds[kind])).result(10) == b"1"


def test_trio_is_told_what_to_do(tmp_path: Path) -> None:
    """Under trio an async method of a local storage says that the sync twin works, and that one does."""
    kinds = storages(tmp_path)
    for kind in ("local", "sync only"):
        storage = kinds[kind]

        async def main(storage: Storage = storage) -> bytes:
            operations: list[Callable[[], Coroutine[Any, Any, object]]] = [
                lambda: storage.aread("f"),
                lambda: storage.awrite("f", b"1"),
                lambda: storage.aappend("f", b"1"),
                lambda: storage.aappend_lines("f", b"1"),
                lambda: storage.alist_dir(""),
            ]
            for operation in operations:
                with pytest.raises(EventLoopError, match=r"under trio.*call the sync twin"):
                    await operation()
            storage.write("f", b"1")
            return storage.read("f")

        assert trio.run(main) == b"1"


def test_an_async_method_without_a_loop_says_so(tmp_path: Path) -> None:
    """A coroutine that is stepped by hand, outside any loop, is refused by the same error."""
    coroutine = LocalStorage(tmp_path).aread("f")
    with pytest.raises(EventLoopError, match="running asyncio event loop"):
        coroutine.send(None)


# ---- cancellation and hung paths


@pytest.mark.anyio
async def test_work_on_a_loop_gives_it_a_turn_after_each_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn costs time, so none is given before the last one is a stretch ago."""
    now = 0.0
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    monkeypatch.setattr(_bridge, "_mode", _bridge._Mode())
    monkeypatch.setattr(_bridge, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in range(100):
        await _bridge.breathe()
        now += _bridge.STRETCH_SECONDS / 4
    task.cancel()
    assert 20 <= turns <= 26


@pytest.mark.anyio
async def test_a_cancelled_operation_waits_for_its_thread(tmp_path: Path) -> None:
    """However often it is cancelled, an operation that a thread is at ends with it, and then is cancelled."""
    os.mkfifo(tmp_path / "hangs")
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        os.close(os.open(tmp_path / "hangs", os.O_RDONLY))

    task = asyncio.ensure_future(_bridge.in_thread(hang))
    assert await asyncio.to_thread(begun.wait, 20)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    os.close(os.open(tmp_path / "hangs", os.O_WRONLY))
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.anyio
async def test_a_queued_operation_is_cancelled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation whose thread has not begun is dropped: it never happens."""
    monkeypatch.setattr(_bridge._shared, "operations", ThreadPool("test", 1))
    os.mkfifo(tmp_path / "hangs")
    storage = LocalStorage(tmp_path)
    hung = asyncio.ensure_future(storage.aread("hangs"))
    await asyncio.sleep(0)
    await until_taken(_bridge._shared.operations)
    queued = asyncio.ensure_future(storage.awrite("f", b"1"))
    await asyncio.sleep(0)
    queued.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait([queued])
    assert queued.cancelled()
    os.close(os.open(tmp_path / "hangs", os.O_WRONLY))
    await hung
    await storage.awrite("g", b"1")
    assert storage.list_dir("") == ["g", "hangs"]


@pytest.mark.anyio
async def test_f05_hung_operations_do_not_starve_a_good_one(tmp_path: Path) -> None:
    """With more reads hanging than there are threads, reads, writes and appends elsewhere still work."""
    storage = LocalStorage(tmp_path)
    os.mkfifo(tmp_path / "hangs")
    hung = [asyncio.ensure_future(storage.aread("hangs")) for _ in range(60)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await storage.awrite("f", b"1")
        await asyncio.gather(*[storage.aappend("f", b"2") for _ in range(3)])
        assert await storage.aread("f") == b"1222"
    assert not any(task.done() for task in hung)
    # Opened for both, so that readers and writers find each other; then closed, which ends the reads.
    descriptor = os.open(tmp_path / "hangs", os.O_RDWR)
    async with asyncio.timeout(10):
        await asyncio.gather(*hung)
    os.close(descriptor)


def test_f05_hung_followers_do_not_starve_a_good_one(tmp_path: Path) -> None:
    """Sixty followers of files that hang leave reading, writing and following of others alone."""
    paths = [tmp_path / f"run{number}" / "metrics.jsonl" for number in range(60)]
    for path in paths:
        path.parent.mkdir()
        os.mkfifo(path)
    good = TrainingRunStore(tmp_path, "good")

    async def main() -> None:
        followers = [TrainingRunStore(path.parent).afollow_metrics() for path in paths]
        tasks = [asyncio.ensure_future(anext(follower)) for follower in followers]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(20):
            await good.awrite_metrics({"n": 1})
            assert await good.aread_metrics() == [{"n": 1}]
            async for batch in good.afollow_metrics():
                assert batch.records == [{"n": 1}]
                break
            for follower in followers:
                await follower.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    asyncio.run(main())
    for path in paths:
        os.close(os.open(path, os.O_RDWR))
        path.unlink()


def test_the_pool_uses_few_threads_for_calls_in_turn() -> None:
    """Calls that wait for each other share one thread, whatever their number."""
    pool = ThreadPool("test", 8)
    assert {result_of(pool, threading.get_ident) for _ in range(200)} != set()
    assert pool._threads <= 2


def test_the_pool_works_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter, or at a limit of the system, the call runs in the caller's thread."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    pool = ThreadPool("test", 8)
    assert result_of(pool, threading.get_ident) == threading.get_ident()
    assert result_of(pool, threading.get_ident) == threading.get_ident()


@pytest.mark.anyio
async def test_a_hop_hands_errors_to_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a call raises is raised where it is awaited, and the thread goes on."""
    pool = ThreadPool("test", 1)
    monkeypatch.setattr(_bridge._shared, "operations", pool)

    def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await _bridge.in_thread(fail)
    assert await _bridge.in_thread(int, "7") == 7
    assert pool._threads == 1
