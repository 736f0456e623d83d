"""One reader shared by threads, tasks and loops: each record is handed out once, and none is lost."""

import asyncio
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from runstore import AsyncStorage, IncrementalReader, LocalStorage, RunStoreError, TrainingRunStore
from runstore.jsonl import _scan
from tests.jsonl.helpers import Failing, append, fork, line, lines, steps

COUNT = 20_000


def write_in_pieces(path: Path, seed: int) -> None:
    """Append `COUNT` records, cut anywhere, so that readers meet unfinished lines all the time."""
    rng = random.Random(seed)
    data = lines(0, COUNT, text="☃" * 5)
    with path.open("ab", buffering=0) as file:
        while data:
            size = rng.randrange(1, 3000)
            file.write(data[:size])
            data = data[size:]


def run_threads(*targets: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches and pieces so small that every read takes several, and readers overtake one another."""
    monkeypatch.setattr(AsyncStorage, "fetch_size", 8_000)
    monkeypatch.setattr(_scan, "PIECE_SIZE", 900)


def check_handed_out_once(reader: IncrementalReader, shares: list[list[Any]]) -> None:
    assert sorted(step for share in shares for step in share) == list(range(COUNT))
    assert all(share == sorted(share) for share in shares)
    assert steps(reader.records) == list(range(COUNT))
    assert reader.total_read == COUNT
    assert reader.malformed.count == 0


@pytest.mark.parametrize("seed", range(3))
def test_many_threads_share_the_records(tmp_path: Path, seed: int) -> None:
    """Over eight threads each record comes exactly once, in file order for each thread."""
    path = tmp_path / "m.jsonl"
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    written = threading.Event()
    shares: list[list[Any]] = [[] for _ in range(8)]

    def write() -> None:
        write_in_pieces(path, seed)
        written.set()

    def read(share: list[Any]) -> None:
        while not written.is_set():
            share += steps(reader.read())
        share += steps(reader.read())

    run_threads(write, *[lambda share=share: read(share) for share in shares])
    check_handed_out_once(reader, shares)


@pytest.mark.anyio
async def test_many_tasks_share_the_records(tmp_path: Path) -> None:
    """The same over eight tasks of one loop, with a sync caller on the loop's own thread among them."""
    path = tmp_path / "m.jsonl"
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    written = threading.Event()
    shares: list[list[Any]] = [[] for _ in range(9)]

    async def read(share: list[Any]) -> None:
        while not written.is_set():
            share += steps(await reader.aread())
        share += steps(await reader.aread())

    async def read_in_place(share: list[Any]) -> None:
        while not written.is_set():
            share += steps(reader.read())
            await asyncio.sleep(0.001)

    def write() -> None:
        write_in_pieces(path, 1)
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    async with anyio.create_task_group() as group:
        for share in shares[1:]:
            group.start_soon(read, share)
        group.start_soon(read_in_place, shares[0])
    writer.join()
    check_handed_out_once(reader, shares)


def test_many_loops_and_threads_share_the_records(tmp_path: Path) -> None:
    """The same over three loops with two tasks each, and two sync threads."""
    path = tmp_path / "m.jsonl"
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    written = threading.Event()
    shares: list[list[Any]] = [[] for _ in range(8)]

    def write() -> None:
        write_in_pieces(path, 2)
        written.set()

    async def aread(share: list[Any]) -> None:
        while not written.is_set():
            share += steps(await reader.aread())
        share += steps(await reader.aread())

    async def two(first: list[Any], second: list[Any]) -> None:
        await asyncio.gather(aread(first), aread(second))

    def read(share: list[Any]) -> None:
        while not written.is_set():
            share += steps(reader.read())

    run_threads(
        write,
        lambda: asyncio.run(two(shares[0], shares[1])),
        lambda: asyncio.run(two(shares[2], shares[3])),
        lambda: asyncio.run(two(shares[4], shares[5])),
        lambda: read(shares[6]),
        lambda: read(shares[7]),
    )
    check_handed_out_once(reader, shares)


@pytest.mark.anyio
async def test_cancelled_reads_lose_nothing(tmp_path: Path) -> None:
    """Reads cancelled at any moment leave their records to the next ones: each comes once, in order."""
    path = tmp_path / "m.jsonl"
    rng = random.Random(3)
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    cancelled = 0
    handed_out: list[Any] = []
    for turn in range(300):
        append(path, lines(60 * turn, 60 * turn + 60, text="x" * 30))
        tasks = [asyncio.ensure_future(reader.aread()) for _ in range(rng.randrange(1, 4))]
        for _ in range(rng.randrange(1, 15)):
            await asyncio.sleep(0)
        for task in rng.sample(tasks, rng.randrange(1, len(tasks) + 1)):
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, list):
                handed_out += steps(done)
            else:
                assert isinstance(done, asyncio.CancelledError)
                cancelled += 1
    handed_out += steps(await reader.aread())
    assert cancelled > 100
    assert handed_out == list(range(60 * 300))


@pytest.mark.anyio
async def test_a_read_with_a_time_limit_goes_on_next_time(tmp_path: Path) -> None:
    """Limits that strike in the middle of a large file make progress and lose nothing."""
    (tmp_path / "m.jsonl").write_bytes(lines(0, COUNT))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    got: list[Any] = []
    limits = 0
    while len(got) < COUNT:
        with anyio.move_on_after(0.001 * (limits + 1)) as scope:
            got += steps(await reader.aread())
        limits += scope.cancelled_caught
    assert limits
    assert got == list(range(COUNT))


@pytest.mark.anyio
async def test_whoever_joins_a_flight_sees_what_was_written_before(tmp_path: Path) -> None:
    """A caller that comes while others are reading still sees the records that it wrote itself."""
    store = TrainingRunStore(tmp_path)

    async def write_and_read(number: int) -> None:
        for turn in range(20):
            await store.awrite_metrics({"who": number, "turn": turn})
            mine = [record["turn"] for record in await store.aread_metrics() if record["who"] == number]
            assert mine == list(range(turn + 1))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(write_and_read, number)


@pytest.mark.anyio
async def test_a_read_under_way_is_not_joined_by_who_wrote_since(tmp_path: Path) -> None:
    """A read that looked at the file before the caller's record was there is not the caller's read."""
    path = tmp_path / "m.jsonl"
    append(path, lines(0, 1))
    looked, go_on = asyncio.Event(), asyncio.Event()

    class Held(LocalStorage):
        async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
            data = await super().aread_range(path, offset, length)
            looked.set()
            await go_on.wait()
            return data

    reader = IncrementalReader(Held(tmp_path), "m.jsonl")
    earlier = asyncio.ensure_future(reader.aread())
    await looked.wait()
    append(path, lines(1, 2))
    mine = asyncio.ensure_future(reader.aread())
    await asyncio.sleep(0)
    go_on.set()
    assert steps(await mine) == [1]
    assert steps(await earlier) == [0]


@pytest.mark.anyio
@pytest.mark.parametrize("failures", [1, 2, 4])
async def test_a_flight_that_fails_is_flown_again_by_who_waited(tmp_path: Path, failures: int) -> None:
    """A failure is raised to one caller; the others read for themselves, and get everything."""
    append(tmp_path / "m.jsonl", lines(0, 100))
    storage = Failing(tmp_path)
    storage.failures = failures
    reader = IncrementalReader(storage, "m.jsonl")
    results = await asyncio.gather(*[reader.aread() for _ in range(5)], return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    assert [isinstance(error, RunStoreError) for error in failed] == [True] * failures
    assert [step for result in results if isinstance(result, list) for step in steps(result)] == list(
        range(100)
    )


@pytest.mark.anyio
async def test_polls_at_once_share_a_flight(tmp_path: Path) -> None:
    """Fifty polls of one loop at the same time cost a few reads, not fifty."""

    class Slow(LocalStorage):
        reads = 0

        async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
            self.reads += 1
            await asyncio.sleep(0.01)
            return await super().aread_range(path, offset, length)

    storage = Slow(tmp_path)
    append(tmp_path / "m.jsonl", lines(0, 3))
    reader = IncrementalReader(storage, "m.jsonl")
    results = await asyncio.gather(*[reader.aread() for _ in range(50)])
    assert [step for result in results for step in steps(result)] == [0, 1, 2]
    assert storage.reads <= 4


def test_one_reader_in_loops_one_after_another(tmp_path: Path) -> None:
    """A reader made anywhere is used by `asyncio.run` twice, by sync calls between, by a thread's loop."""
    path = tmp_path / "m.jsonl"
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    got: list[Any] = []

    def read_in_a_loop() -> None:
        got.extend(steps(asyncio.run(reader.aread())))

    for step in range(6):
        append(path, line(step=step))
        if step % 3 == 0:
            got += steps(asyncio.run(reader.aread()))
        elif step % 3 == 1:
            got += steps(reader.read())
        else:
            run_threads(read_in_a_loop)
    assert got == list(range(6))


def test_a_forked_child_reads_on_though_a_thread_held_the_lock(tmp_path: Path) -> None:
    """In a child forked while the reader was at work elsewhere, it reads on from the same place."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 10))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    assert len(reader.read()) == 10
    append(path, lines(10, 12))
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with reader._lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    child = fork()
    if child == 0:
        os._exit(0 if steps(reader.read()) == [10, 11] else 1)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert steps(reader.read()) == [10, 11]


class InterruptedLock:
    """A lock that delivers an interrupt as it is left for the nth time, as a signal may."""

    def __init__(self, after: int) -> None:
        self.lock = threading.Lock()
        self.left = after

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", range(1, 8))
def test_an_interrupted_read_loses_nothing(tmp_path: Path, after: int) -> None:
    """What a read took before Ctrl-C is handed out by the next one, each record once and in order."""
    lines = [b'{"step":%d,"text":"%s"}\n' % (step, b"x" * 60_000) for step in range(20)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    reader = IncrementalReader(LocalStorage(tmp_path), "metrics.jsonl")
    reader._lock = InterruptedLock(after)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        reader.read()
    reader._lock = InterruptedLock(1)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):  # while it claims what was left
        reader.read()
    reader._lock = threading.Lock()
    assert [record["step"] for record in reader.read()] == list(range(20))
    assert reader.total_read == 20
