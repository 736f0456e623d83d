"""Processes: forked, spawned, interrupted and ending, with and without a close."""

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.scripts import run, start, write_script

# A pool of four by each way to start processes; the parent has used both colours before.
CHILDREN = """
    import asyncio, multiprocessing, sys, warnings
    from concurrent.futures import ProcessPoolExecutor
    from runstore import LocalStorage, TrainingRunStore

    warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tried here

    def work(store, number):
        store.write_metrics({"n": number, "colour": "sync"})
        asyncio.run(awork(store, number))
        return len(store.read_rollouts(1)), len(store.storage.list_dir(""))

    async def awork(store, number):
        await asyncio.gather(*[store.awrite_metrics({"n": number, "colour": n}) for n in range(5)])
        assert len(await store.aread_metrics()) >= 6
        async for batch in store.afollow_metrics():
            assert batch.records
            break

    def main(root):
        store = TrainingRunStore(LocalStorage(root), "run")
        store.write_rollouts(1, [{"group_idx": 0, "traj_idx": 0}])
        asyncio.run(awork_in_parent(store))
        for method in ("fork", "forkserver", "spawn"):
            context = multiprocessing.get_context(method)
            with ProcessPoolExecutor(4, mp_context=context) as pool:
                results = list(pool.map(work, [store] * 8, range(8), timeout=40))
            assert results == [(1, 1)] * 8, results
            store.write_metrics({"parent": method})
        records = store.read_metrics()
        assert len(records) == 1 + 3 * (8 * 6 + 1), len(records)
        asyncio.run(store.awrite_metrics({"parent": "after"}))
        assert store.read_new_metrics() == [{"parent": "after"}]

    async def awork_in_parent(store):
        await store.awrite_metrics({"parent": "before"})
        async for batch in store.afollow_metrics():
            break

    if __name__ == "__main__":
        main(sys.argv[1])
"""

# The parent forks again and again while its other threads are at work with the same objects.
FORK_AMID_WORK = """
    import asyncio, os, sys, threading, time, warnings
    from runstore import LocalStorage, TrainingRunStore

    warnings.simplefilter("ignore", DeprecationWarning)
    root = sys.argv[1]
    store = TrainingRunStore(LocalStorage(root), "run")
    stop = threading.Event()

    def sync_work():
        while not stop.is_set():
            store.write_metrics({"text": "x" * 2000})
            store.read_new_metrics()
            store.write_rollouts(1, [{"a": 1}])

    async def async_work():
        while not stop.is_set():
            await asyncio.gather(*[store.awrite_metrics({"n": n}) for n in range(20)])
            await store.aread_metrics()
            follower = store.afollow_metrics(cursor="end")
            step = asyncio.ensure_future(anext(follower))
            await store.awrite_metrics({"n": 0})
            await asyncio.wait([step], timeout=1)
            await follower.aclose()
            step.cancel()

    threads = [threading.Thread(target=sync_work), threading.Thread(target=asyncio.run, args=(async_work(),))]
    # The first child comes into being while the threads import and set up what they share.
    for thread in threads:
        thread.start()
    children = []
    for number in range(25):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                store.write_metrics({"child": number})
                store.read_new_metrics()
                asyncio.run(store.awrite_metrics({"child": number}))
                asyncio.run(store.aread_metrics())
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
        time.sleep(0.002)
    deadline = time.monotonic() + 25
    codes = []
    for pid in children:
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, 9)
            time.sleep(0.005)
        codes.append(os.waitstatus_to_exitcode(ended[1]))
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 25, codes
    records = TrainingRunStore(root + "/run").read_metrics()
    written = [record["child"] for record in records if "child" in record]
    assert sorted(written) == sorted([*range(25), *range(25)]), written
"""

ENDINGS = """
    import asyncio, atexit, gc, sys
    from runstore import LocalStorage, TrainingRunStore

    root, ending = sys.argv[1:]
    store = TrainingRunStore(LocalStorage(root), "run")
    store.write_metrics({"n": 0})

    async def main():
        await asyncio.gather(*[store.awrite_metrics({"n": n}) for n in range(1, 20)])
        async for batch in store.afollow_metrics():
            break

    asyncio.run(main())

    class AtTheEnd:
        def __init__(self):
            self.store = store
            self.me = self  # a cycle, which only the collector ends

        def __del__(self):
            self.store.write_metrics({"del": len(self.store.read_metrics())})

    def at_exit():
        store.write_metrics({"atexit": len(store.read_metrics())})
        store.storage.close()

    def at_exit_awaited():
        asyncio.run(store.awrite_metrics({"atexit": 20}))

    if ending == "exception":
        raise ZeroDivisionError("the script's own")
    if ending == "exit 3":
        sys.exit(3)
    if ending == "atexit":
        atexit.register(at_exit)
    if ending == "atexit awaited":
        atexit.register(at_exit_awaited)
    if ending == "del":
        gc.disable()
        AtTheEnd()
    if ending == "del of a global":
        kept = AtTheEnd()
        kept.me = None
"""

HUNG = """
    import asyncio, os, sys
    from runstore import LocalStorage, TrainingRunStore

    root, kind = sys.argv[1:]
    os.makedirs(root + "/run")
    os.mkfifo(root + "/run/metrics.jsonl")
    store = TrainingRunStore(LocalStorage(root), "run")

    async def main():
        if kind == "follower":
            step = asyncio.ensure_future(anext(store.afollow_metrics()))
            await asyncio.sleep(0.2)
            step.cancel()
        await store.awrite_config({"a": 1})

    if kind == "read":
        loop = asyncio.new_event_loop()
        task = loop.create_task(store.storage.aread("run/metrics.jsonl"))
        loop.run_until_complete(asyncio.sleep(0.2))
    asyncio.run(main())
    print(store.read_config())
    sys.exit(4)
"""

INTERRUPTED = """
    import asyncio, os, signal, sys, time
    from runstore import LocalStorage, TrainingRunStore

    signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
    root, kind = sys.argv[1:]
    storage = LocalStorage(root)
    store = TrainingRunStore(storage, "run")
    os.mkfifo(root + "/hangs")
    store.write_metrics({"n": 0})

    def slow():
        if kind == "read":
            storage.read("hangs")
        elif kind == "append":
            storage.append("hangs", b"x" * 1_000_000)
        elif kind == "follow":
            for batch in store.follow_metrics(cursor="end"):
                raise AssertionError(batch)
        elif kind == "wait":
            seen = storage.watch("f", None, 60)
            while True:
                storage.watch("f", seen, 60)

    print("ready", flush=True)
    try:
        slow()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    store.write_metrics({"n": 1})
    assert store.read_metrics() == [{"n": 0}, {"n": 1}]
    asyncio.run(store.awrite_metrics({"n": 2}))
    records = []
    for batch in store.follow_metrics():
        records += batch
        if len(records) == 3:
            break
    assert records == [{"n": 0}, {"n": 1}, {"n": 2}], records
    print("works", flush=True)
"""

# Interrupts at every moment of what is repeated; files that stay open would be in /proc/self/fd.
INTERRUPTED_OFTEN = """
    import os, signal, sys
    from runstore import LocalStorage

    storage = LocalStorage(sys.argv[1])

    async def end_to_end():
        file = storage.open_file("f")
        try:
            await file.aread_range(0, 1)
        finally:
            await file.aclose()

    work = {
        "file held open": lambda: storage.run_sync(end_to_end),
        "scan": lambda: storage.scan(""),
        "write": lambda: storage.write("f", b"1"),
        "durable write": lambda: storage.durable_view().write("f", b"1"),
        "write of a link": lambda: storage.write("link", b"1"),
    }[sys.argv[2]]
    work()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    before = os.listdir("/proc/self/fd")
    interrupts = 0
    for number in range(400):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + number * 0.000005)
            while True:
                work()
        except KeyboardInterrupt:
            interrupts += 1
    assert os.listdir("/proc/self/fd") == before, os.listdir("/proc/self/fd")
    print(interrupts, *storage.list_dir(""))
"""


def test_e03_pools_of_four_children(tmp_path: Path) -> None:
    """Forked, fork-served and spawned children read, write and follow in both colours; the parent goes on."""
    done = run(write_script(tmp_path, CHILDREN), tmp_path / "root")
    assert (done.returncode, done.stderr) == (0, "")


def test_e03_a_fork_amid_work_of_other_threads(tmp_path: Path) -> None:
    """A child never waits for a lock that a thread of its parent held, whatever that thread was at."""
    done = run(write_script(tmp_path, FORK_AMID_WORK), tmp_path / "root")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("plain", 0, None),
        ("exception", 1, None),
        ("exit 3", 3, None),
        ("atexit", 0, {"atexit": 20}),
        ("atexit awaited", 0, {"atexit": 20}),
        ("del", 0, {"del": 20}),
        ("del of a global", 0, {"del": 20}),
    ],
)
def test_e04_a_script_that_closes_nothing(
    tmp_path: Path, ending: str, code: int, last: dict[str, int] | None
) -> None:
    """However it ends, it ends within 5 s with the right code, its own error unmasked, nothing lost."""
    begin = time.monotonic()
    done = run(write_script(tmp_path, ENDINGS), tmp_path / "root", ending)
    assert time.monotonic() - begin < 5
    assert done.returncode == code
    if ending == "exception":
        assert done.stderr.splitlines()[-1] == "ZeroDivisionError: the script's own"
        assert done.stderr.count("Traceback") == 1
    else:
        assert done.stderr == ""
    check = """
        import sys
        from runstore import TrainingRunStore
        print(TrainingRunStore(sys.argv[1]).read_metrics())
    """
    records = run(write_script(tmp_path, check, "check.py"), tmp_path / "root" / "run").stdout
    assert records.strip() == str([{"n": n} for n in range(20)] + ([last] if last else []))


@pytest.mark.parametrize("kind", ["read", "follower"])
def test_e04_a_hung_thread_does_not_keep_a_script(tmp_path: Path, kind: str) -> None:
    """With a read hanging for ever in the background, the script ends within 5 s with its own code."""
    begin = time.monotonic()
    done = run(write_script(tmp_path, HUNG), tmp_path / "root", kind, seconds=30)
    assert time.monotonic() - begin < 5
    assert (done.returncode, done.stdout) == (4, "{'a': 1}\n")


@pytest.mark.parametrize("kind", ["read", "append", "follow", "wait"])
def test_e07_an_interrupt_ends_a_slow_call_at_once(tmp_path: Path, kind: str) -> None:
    """SIGINT during a slow sync call is a KeyboardInterrupt within 1 s, and the store works on."""
    with start(write_script(tmp_path, INTERRUPTED), tmp_path / "root", kind) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # it is in the slow call, which tells nobody
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begin < 1
        # Not communicate(), which does not see what readline() has read ahead.
        assert process.stdout.read() == "works\n"
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(30)) == ("", 0)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files")
@pytest.mark.parametrize("work", ["file held open", "scan", "write", "durable write", "write of a link"])
def test_interrupts_leave_no_file_open(tmp_path: Path, work: str) -> None:
    """Ctrl-C in a notebook, as often as one likes, costs no descriptor and leaves no temporary file."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "f").write_bytes(b"")
    (root / "link").symlink_to("f")
    # Python warns of a coroutine that an interrupt keeps from starting.
    options = ("-W", "ignore:coroutine:RuntimeWarning")
    done = run(write_script(tmp_path, INTERRUPTED_OFTEN), root, work, options=options)
    assert (done.stdout, done.stderr) == ("400 f link\n", "")
    assert sorted(path.name for path in root.iterdir()) == ["f", "link"]


def test_a_child_of_a_child(tmp_path: Path) -> None:
    """A process forked by a forked process works too."""
    script = """
        import asyncio, os, sys
        from runstore import LocalStorage

        storage = LocalStorage(sys.argv[1])
        asyncio.run(storage.aappend("f", b"0"))
        for _ in range(2):
            pid = os.fork()
            if pid:
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            asyncio.run(storage.aappend("f", b"1"))
            storage.append("f", b"2")
        assert storage.read("f") == b"01212"
        sys.exit(7)
    """
    options = ("-W", "ignore::DeprecationWarning") if sys.version_info >= (3, 12) else ()
    done = run(write_script(tmp_path, script), tmp_path / "root", options=options)
    assert (done.returncode, done.stderr) == (7, "")
