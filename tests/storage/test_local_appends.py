"""Appending to local files: from many processes and tasks, over torn tails, onto full disks."""

import asyncio
import json
import os
import resource
import select
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runstore import LocalStorage, StorageFullError, TrainingRunStore
from runstore.storage import _files
from runstore.storage._append_queue import Append, queue_append
from tests.scripts import run, start, write_script

WRITER = """
    import asyncio, sys
    from runstore import LocalStorage

    root, writer, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    storage = LocalStorage(root)
    padding = "x" * size
    lines = [f'{{"writer":{writer},"n":{n},"x":"{padding}"}}\\n'.encode() for n in range(count)]

    async def together():
        await asyncio.gather(*[storage.aappend_lines("f.jsonl", line) for line in lines[count // 2:]])

    print("ready", flush=True)
    sys.stdin.readline()
    for line in lines[:count // 2]:
        storage.append_lines("f.jsonl", line)
    asyncio.run(together())
"""

FULL_DISK = """
    import asyncio, json, resource, sys
    from runstore import LocalStorage, StorageFullError

    storage = LocalStorage(sys.argv[1])
    limit = 100_000

    async def main():
        lines = [b'{"n":%d,"x":"%s"}\\n' % (n, b"x" * 300) for n in range(500)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        outcomes = await asyncio.gather(
            *[storage.aappend_lines("f.jsonl", line) for line in lines], return_exceptions=True
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await storage.aappend_lines("f.jsonl", b'{"n":500,"x":""}\\n')
        return outcomes

    outcomes = asyncio.run(main())
    stored, torn = [], 0
    for line in storage.read("f.jsonl").splitlines():
        try:
            stored.append(json.loads(line)["n"])
        except ValueError:
            torn += 1
    succeeded = [n for n, outcome in enumerate(outcomes) if outcome is None]
    failed = [outcome for outcome in outcomes if outcome is not None]
    assert 200 < len(succeeded) < 400, len(succeeded)
    assert stored == [*succeeded, 500], (stored, succeeded)
    assert torn <= 1, torn
    assert all(isinstance(error, StorageFullError) and "f.jsonl" in str(error) for error in failed), failed[0]
"""


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("size", "count"), [(200, 500), (8_000, 500), (300_000, 100)])
def test_c05_eight_processes_append_whole_lines(tmp_path: Path, size: int, count: int) -> None:
    """Records of eight processes at once, sync and awaited, all stand whole in one file."""
    script = write_script(tmp_path, WRITER)
    root = tmp_path / "run"
    with ExitStack() as stack:
        writers = [stack.enter_context(start(script, root, number, count, size)) for number in range(8)]
        for process in writers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in writers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outcomes = [(process.communicate(timeout=50)[1], process.returncode) for process in writers]
    assert outcomes == [("", 0)] * 8
    lines = (root / "f.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    blank = lines.count(b"")
    assert blank <= 8
    found: dict[int, list[int]] = {}
    for line in filter(None, lines):
        record = json.loads(line)
        assert len(record["x"]) == size
        found.setdefault(record["writer"], []).append(record["n"])
    assert found == {writer: list(range(count)) for writer in range(8)}


@pytest.mark.anyio
async def test_c05_eight_tasks_append_whole_lines(tmp_path: Path) -> None:
    """Records of eight tasks of one process all stand whole, in each task's order."""
    storage = LocalStorage(tmp_path)

    async def write(task: int) -> None:
        for number in range(200):
            await storage.aappend_lines("f", b"%d %d %s\n" % (task, number, b"x" * 2_000))

    await asyncio.gather(*[write(task) for task in range(8)])
    lines = (await storage.aread("f")).splitlines()
    by_task: dict[int, list[int]] = {}
    for line in lines:
        task, number, padding = line.split(b" ")
        assert padding == b"x" * 2_000
        by_task.setdefault(int(task), []).append(int(number))
    assert by_task == {task: list(range(200)) for task in range(8)}


def test_many_healers_of_one_torn_tail(tmp_path: Path) -> None:
    """When many find the same unfinished line, it gets one newline, not one from each."""
    storage = LocalStorage(tmp_path)
    for turn in range(20):
        path = f"f{turn}"
        storage.append(path, b"torn")
        together = threading.Barrier(6)

        def write(letter: bytes, path: str = path, together: threading.Barrier = together) -> None:
            together.wait(10)
            storage.append_lines(path, letter + b"\n")

        threads = [threading.Thread(target=write, args=(bytes([letter]),)) for letter in b"abcdef"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torn, *rest = storage.read(path).split(b"\n")
        assert torn == b"torn"
        assert Counter(rest) == Counter([b"a", b"b", b"c", b"d", b"e", b"f", b""])


def test_a_writer_at_work_is_not_cut_in_two(tmp_path: Path) -> None:
    """A line that another process writes in two steps stays whole: healing waits while the file grows."""
    storage = LocalStorage(tmp_path)
    storage.append("f", b"begin")

    def finish() -> None:
        for _ in range(30):
            storage.append("f", b".")
            time.sleep(_files.TAIL_LOOK_SECONDS / 4)
        storage.append("f", b"end\n")

    thread = threading.Thread(target=finish)
    thread.start()
    storage.append_lines("f", b"next\n")
    thread.join()
    lines = storage.read("f").splitlines()
    # On a machine that stops the other thread for long, the line counts as torn; it is never mixed.
    assert lines[-1] == b"next" or lines[1] == b"next"
    assert b"".join(line for line in lines if line != b"next") == b"begin" + b"." * 30 + b"end"


@pytest.mark.anyio
async def test_f04_appends_and_lines_of_one_loop_land_in_call_order(tmp_path: Path) -> None:
    """Five hundred appends of both kinds started at once land in the order of their calls."""
    storage = LocalStorage(tmp_path)
    synced = LocalStorage(tmp_path, fsync=True)
    calls = [storage.aappend, storage.aappend_lines, synced.aappend_lines]
    await asyncio.gather(*[calls[(n // 5) % 3]("f", b"%d\n" % n) for n in range(500)])
    assert storage.read("f") == b"".join(b"%d\n" % n for n in range(500))


@pytest.mark.anyio
async def test_f04_appends_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that come while one is under way are committed by one more write, not by one each."""
    writes: list[int] = []
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        writes.append(len(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    storage = LocalStorage(tmp_path)
    await asyncio.gather(*[storage.aappend_lines("own", b"%03d\n" % n) for n in range(500)])
    assert [size for size in writes if size >= 4] == [4, 499 * 4]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of descriptors come from /proc")
@pytest.mark.anyio
async def test_fsync_reaches_the_disk_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `fsync=True` every write and append is synced, a new file's folder too, in both colours."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    storage = LocalStorage(tmp_path / "root", fsync=True)
    storage.append("appended", b"1")
    await storage.aappend_lines("appended", b"2\n")
    await asyncio.gather(*[storage.aappend("appended", b"3\n") for _ in range(10)])
    assert synced == ["appended"] * 4  # of ten at once, one alone and nine together
    del synced[:]
    storage.write("written", b"1")
    await storage.awrite("written", b"2")
    assert synced[1::2] == ["root", "root"]
    assert len(synced) == 4
    del synced[:]
    LocalStorage(tmp_path / "root").write("written", b"3")
    assert synced == []


@pytest.mark.anyio
async def test_f04_sequential_awaits(tmp_path: Path) -> None:
    """Appends awaited one after the other, mixed with sync ones, land in that order."""
    storage = LocalStorage(tmp_path)
    for number in range(0, 100, 2):
        await storage.aappend("f", b"%d\n" % number)
        storage.append("f", b"%d\n" % (number + 1))
    assert storage.read("f") == b"".join(b"%d\n" % n for n in range(100))


def test_f04_each_of_500_gets_its_own_result(tmp_path: Path) -> None:
    """On a disk that fills up, what succeeded is in the file, what failed is not, and then all is well."""
    done = run(write_script(tmp_path, FULL_DISK), tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")


def test_f04_the_first_that_does_not_fit_fails(tmp_path: Path) -> None:
    """Of a commit that the disk cannot hold, those that fitted succeed, though one write carried all."""
    storage = LocalStorage(tmp_path)

    async def main() -> list[BaseException | None]:
        lines = [b"%d %s\n" % (n, b"x" * (50_000 if n == 7 else 10)) for n in range(20)]
        calls = [storage.aappend_lines("f", line) for line in lines]
        return await asyncio.gather(*calls, return_exceptions=True)

    with largest_file(20_000):
        outcomes = asyncio.run(main())
    assert [n for n, outcome in enumerate(outcomes) if outcome is None] == list(range(7))
    assert all(isinstance(outcome, StorageFullError) for outcome in outcomes[7:])
    storage.append_lines("f", b"20\n")
    lines = storage.read("f").splitlines()
    assert [int(line.split()[0]) for line in lines] == [*range(8), 20]  # of line 7, what fitted


@pytest.mark.anyio
async def test_a_cancelled_queued_append_never_lands(tmp_path: Path) -> None:
    """An append that waited for its turn when it was cancelled is never written; its neighbours are."""
    storage = LocalStorage(tmp_path)
    tasks = [asyncio.ensure_future(storage.aappend("f", b"%d\n" % n)) for n in range(10)]
    await asyncio.sleep(0)  # the first is under way, the others wait
    tasks[4].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [4]
    assert storage.read("f").split() == [b"%d" % n for n in range(10) if n != 4]


@pytest.mark.anyio
async def test_a_cancelled_append_under_way_is_waited_for(tmp_path: Path) -> None:
    """The cancellation of an append that a thread is at is raised when the thread is done."""
    storage = LocalStorage(tmp_path)
    for kind in ("lead", "follow"):
        name = f"hangs-{kind}"
        os.mkfifo(tmp_path / name)
        # Opening a pipe to append does not hang, filling it does.
        tasks = [asyncio.ensure_future(storage.aappend(name, b"x" * 100_000))]
        if kind == "follow":
            await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(storage.aappend(name, b"y" * 10)))
        reader = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader, True)
        readable, _, _ = await asyncio.to_thread(select.select, [reader], [], [], 20)
        assert readable
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks[:1], timeout=0.1)
        assert not done
        got = b""
        while len(got) < 100_000:
            got += await asyncio.to_thread(os.read, reader, 65_536)
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * len(tasks)
        os.close(reader)
        assert got == b"x" * 100_000


@pytest.mark.anyio
async def test_cancelling_all_leaves_the_storage_usable(tmp_path: Path) -> None:
    """After a crowd of appends is cancelled at any moment, the next append goes through."""
    storage = LocalStorage(tmp_path)
    for turns in range(10):
        tasks = [asyncio.ensure_future(storage.aappend_lines("f", b"%d\n" % n)) for n in range(50)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(10):
            await storage.aappend_lines("f", b"next\n")
        assert storage.read("f").endswith(b"next\n")


@pytest.mark.anyio
async def test_what_is_no_bytes_fails_alone(tmp_path: Path) -> None:
    """A caller that appends a string among others gets a `TypeError` naming the path; theirs are stored."""
    storage = LocalStorage(tmp_path)
    data: list[Any] = [b"0\n", b"1\n", "2\n", bytearray(b"3\n"), None, memoryview(b"5\n")]
    outcomes = await asyncio.gather(*[storage.aappend("log", item) for item in data], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        type(None),
        TypeError,
        type(None),
        TypeError,
        type(None),
    ]
    assert "'log' must be bytes, not str" in str(outcomes[2])
    assert storage.read("log") == b"0\n1\n3\n5\n"
    for write in (storage.write, storage.append, storage.append_lines):
        with pytest.raises(TypeError, match="must be bytes"):
            write("other", "text")  # type: ignore[arg-type]  # that is the point
    assert not storage.exists("other")


@pytest.mark.anyio
async def test_an_unforeseen_failure_reaches_every_caller_of_its_commit(tmp_path: Path) -> None:
    """Whatever goes wrong while a commit is written is raised to those in it, and never as a cancellation."""

    def fail(appends: Sequence[Append]) -> list[BaseException | None]:
        raise MemoryError

    calls = [queue_append("key", fail, Append(b"x", whole_lines=False, durable=False)) for _ in range(5)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MemoryError] * 5


def test_a_record_that_lacks_only_its_newline_is_stored(tmp_path: Path) -> None:
    """When a disk is full one byte early, the record counts for readers, and no failure is raised."""
    store = TrainingRunStore(tmp_path)
    store.write_metrics({"step": 0})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with largest_file(2 * size - 1):
        store.write_metrics({"step": 1})
        with pytest.raises(StorageFullError):
            store.write_metrics({"step": 2})
    store.write_metrics({"step": 3})
    assert store.read_metrics() == [{"step": 0}, {"step": 1}, {"step": 3}]


def test_a_sync_append_goes_through_a_subclass_of_the_awaited_one(tmp_path: Path) -> None:
    """Whoever overrides `aappend_lines` alone, directly or by a mixin, has it used by `append_lines` too."""

    class Doubled:
        async def aappend_lines(self, path: str, data: bytes) -> None:
            await super().aappend_lines(path, data * 2)  # type: ignore[misc]  # of the class it is mixed into

    class Mixed(Doubled, LocalStorage):
        pass

    class Below(Mixed):
        pass

    for number, storage in enumerate((LocalStorage(tmp_path), Mixed(tmp_path), Below(tmp_path)), 1):
        storage.append_lines("log", b"%d\n" % number)
        TrainingRunStore(storage).write_metrics({"n": number})
    assert (tmp_path / "log").read_bytes() == b"1\n2\n2\n3\n3\n"
    assert [record["n"] for record in TrainingRunStore(tmp_path).read_metrics()] == [1, 2, 2, 3, 3]
