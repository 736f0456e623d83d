"""Followers: each sees every record from its start once, and learns when the file was replaced."""

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from runstore import (
    AsyncFollower,
    AsyncStorage,
    Batch,
    Follower,
    InvalidInputError,
    LocalStorage,
    RunStoreError,
    TrainingRunStore,
)
from runstore.jsonl import _follow, _poller, _scan
from tests.jsonl.helpers import (
    DEADLINE,
    Counting,
    Failing,
    append,
    await_until,
    line,
    lines,
    replace,
    steps,
    wait_until,
)

METRICS = "metrics.jsonl"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / METRICS


@pytest.fixture
def store(tmp_path: Path) -> TrainingRunStore:
    return TrainingRunStore(tmp_path)


def take(follower: Iterator[Batch], count: int) -> list[Any]:
    """The steps of the next `count` records."""
    found: list[Any] = []
    while len(found) < count:
        found += steps(next(follower).records)
    return found


async def atake(follower: AsyncFollower, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(DEADLINE):
        while len(found) < count:
            found += steps((await anext(follower)).records)
    return found


def in_threads(*calls: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_records_come_as_they_are_written(store: TrainingRunStore, path: Path) -> None:
    """A follower gives what is there, then each record as it is written, and no half of one."""
    path.write_bytes(lines(0, 3))
    with store.follow_metrics() as follower:
        assert take(follower, 3) == [0, 1, 2]
        store.write_metrics({"step": 3})
        assert take(follower, 1) == [3]
        append(path, b'{"step"')
        append(path, b": 4}\n" + lines(5, 7))
        assert take(follower, 3) == [4, 5, 6]


@pytest.mark.anyio
async def test_records_come_as_they_are_awaited(store: TrainingRunStore, path: Path) -> None:
    """The async twin."""
    append(path, lines(0, 3))
    async with store.afollow_metrics() as follower:
        assert await atake(follower, 3) == [0, 1, 2]
        await store.awrite_metrics({"step": 3})
        assert await atake(follower, 1) == [3]
        append(path, b'{"step"')
        append(path, b": 4}\n" + lines(5, 7))
        assert await atake(follower, 3) == [4, 5, 6]


def test_h01_a_follower_goes_on_from_a_snapshot(store: TrainingRunStore, path: Path) -> None:
    """Snapshot, 5 appends, follow from its cursor, drop, 5 more, reconnect: all 10 once."""
    path.write_bytes(lines(0, 20))
    snapshot = store.snapshot_metrics()
    assert steps(snapshot.records) == list(range(20))
    append(path, lines(20, 25))
    cursor = snapshot.cursor
    found: list[Any] = []
    with store.follow_metrics(cursor=cursor) as follower:
        while len(found) < 5:
            batch = next(follower)
            found += steps(batch.records)
            cursor = batch.cursor
    append(path, lines(25, 30))
    assert cursor.isprintable()
    assert len(cursor) < 60
    with TrainingRunStore(path.parent).follow_metrics(cursor=cursor) as follower:
        assert found + take(follower, 5) == list(range(20, 30))


def test_h01_every_cursor_on_the_way_is_a_place_to_go_on(store: TrainingRunStore, path: Path) -> None:
    """From the cursor after any batch, in whatever pieces the records came, the rest follows."""
    with store.follow_metrics() as follower:
        cursors = {}
        seen = 0
        for step in range(8):
            append(path, line(step=step)[: -1 if step % 2 else None] + b"\n" * (step % 2))
            while seen <= step:
                batch = next(follower)
                seen += len(batch.records)
                cursors[seen] = batch.cursor
    assert sorted(cursors) == list(range(1, 9))
    append(path, lines(8, 9))
    for seen, cursor in cursors.items():
        with store.follow_metrics(cursor=cursor) as follower:
            assert take(follower, 9 - seen) == list(range(seen, 9))


def test_a_cursor_in_the_middle_of_a_line_is_one_too(store: TrainingRunStore, path: Path) -> None:
    """A record whose newline is still to come has a cursor, and what follows on its line is not lost."""
    path.write_bytes(b'{"step":0}')
    with store.follow_metrics() as follower:
        batch = next(follower)
    assert steps(batch.records) == [0]
    append(path, b'{"step":1}\n{"step":2}\n')
    with store.follow_metrics(cursor=batch.cursor) as follower:
        assert take(follower, 2) == [1, 2]


@pytest.mark.parametrize("later", [lines(100, 103), lines(100, 200)], ids=["shorter", "longer"])
def test_h01_a_stale_cursor_resets(store: TrainingRunStore, path: Path, later: bytes) -> None:
    """A cursor into a file that was replaced gives a batch that says so, and the new file from its start."""
    path.write_bytes(lines(0, 20))
    cursor = store.snapshot_metrics().cursor
    replace(path, later)
    with store.follow_metrics(cursor=cursor) as follower:
        batch = next(follower)
    assert batch.reset
    assert steps(batch.records) == list(range(100, 100 + later.count(b"\n")))


def test_h01_a_cursor_into_a_file_that_is_gone_resets(store: TrainingRunStore, path: Path) -> None:
    """A deleted file is an empty batch that says so; what is written then follows."""
    path.write_bytes(lines(0, 20))
    cursor = store.snapshot_metrics().cursor
    path.unlink()
    with store.follow_metrics(cursor=cursor) as follower:
        batch = next(follower)
        assert (batch.records, batch.reset) == ([], True)
        path.write_bytes(lines(50, 52))
        assert take(follower, 2) == [50, 51]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "End",
        "1.2.3",
        "1.5.9.0123456789abcdef",
        "2.5.5.0123456789abcdef",
        "1.5.0.0123456789abcdef",
        "x" * 9999,
    ],
)
def test_h01_an_invalid_cursor_is_refused_at_once(store: TrainingRunStore, cursor: str) -> None:
    """What no cursor can be is a ValueError of the call itself, with a short message."""
    for follow in (store.follow_metrics, store.afollow_metrics):
        with pytest.raises(InvalidInputError, match="is no cursor") as caught:
            follow(cursor=cursor)
        assert len(str(caught.value)) < 400
    with pytest.raises(InvalidInputError, match="interval"):
        store.follow_metrics(interval=0)


def test_the_end_is_what_comes_from_now_on(store: TrainingRunStore, path: Path) -> None:
    """A follower from the end skips what is there, a whole record without its newline included."""
    for number, present in enumerate([b"", lines(0, 5), lines(0, 5) + b'{"step":5}', lines(0, 5) + b'{"st']):
        replace(path, present)
        batches: list[Batch] = []
        with store.follow_metrics(cursor="end", interval=0.02) as follower:
            thread = threading.Thread(target=lambda: batches.append(next(follower)))  # noqa: B023  joined below
            thread.start()
            wait_until(lambda: follower._follow._taken is not None)
            append(path, b'ep":7}\n' if present.endswith(b"st") else b'\n{"step":7}\n')
            thread.join(DEADLINE)
        assert [steps(batch.records) for batch in batches] == [[7]], number
        assert not batches[0].reset


@pytest.mark.parametrize("tail", [0, 5, 2000, _scan.PIECE_SIZE - 3, 3 * _scan.PIECE_SIZE])
def test_the_end_is_known_by_the_bytes_before_it(tmp_path: Path, path: Path, tail: int) -> None:
    """However long the unfinished line is, the place before it has a whole anchor."""
    whole = lines(0, 300)
    path.write_bytes(whole + b"x" * tail)
    position = asyncio.run(_scan.end_of_file(LocalStorage(tmp_path), METRICS))
    assert (position.offset, position.tail) == (len(whole), b"x" * tail)
    assert position.anchor == whole[-1024:]


@pytest.mark.anyio
async def test_h02_followers_from_different_times_each_see_all(store: TrainingRunStore, path: Path) -> None:
    """Three followers that start one after another each get everything from their start, in order."""
    append(path, lines(0, 10))
    found: list[list[Any]] = [[], [], []]

    async def follow(number: int, cursor: str | None) -> None:
        async for batch in store.afollow_metrics(cursor=cursor):
            found[number] += steps(batch.records)
            if 59 in found[number]:
                break

    async with asyncio.timeout(DEADLINE), anyio.create_task_group() as group:
        group.start_soon(follow, 0, None)
        await await_until(lambda: len(found[0]) == 10)
        cursor = (await store.asnapshot_metrics()).cursor
        append(path, lines(10, 30))
        group.start_soon(follow, 1, cursor)
        append(path, lines(30, 40))
        await await_until(lambda: len(found[0]) == 40 and len(found[1]) == 30)
        group.start_soon(follow, 2, None)
        for step in range(40, 60):
            append(path, line(step=step))
            await asyncio.sleep(0)
    assert found == [list(range(60)), list(range(10, 60)), list(range(60))]


@pytest.mark.anyio
async def test_h02_each_new_byte_is_read_once_for_all(tmp_path: Path, path: Path) -> None:
    """Fifty followers cost one read of each new byte, and a kilobyte of what is known a look."""
    append(path, lines(0, 1000))
    storage = Counting(tmp_path)
    store = TrainingRunStore(storage)
    found: list[list[Any]] = [[] for _ in range(50)]

    async def follow(share: list[Any]) -> None:
        async for batch in store.afollow_metrics(cursor="end"):
            share += steps(batch.records)
            if 2999 in share:
                break

    async with asyncio.timeout(DEADLINE), anyio.create_task_group() as group:
        for share in found:
            group.start_soon(follow, share)
        await await_until(lambda: len(_followers_in_step(tmp_path)) == 50)
        storage.read_bytes = storage.reads = 0
        for start in range(1000, 3000, 100):
            append(path, lines(start, start + 100, text="x" * 100))
            await asyncio.sleep(0.01)
    assert found == [list(range(1000, 3000))] * 50
    new = len(lines(1000, 3000, text="x" * 100))
    assert new <= storage.read_bytes <= new + 1024 * storage.reads


def _followers_in_step(root: Path) -> list[int]:
    """One item for each follower that has seen all that the poller knows, and waits for more."""
    poller = _poller.pollers._by_file.get((str(root), METRICS))
    if poller is None:
        return []
    with poller._changed:  # before there is a head, followers wait for that
        waiting = list(poller._waiting.values()) if poller._head is not None else []
    return [index for futures in waiting for index, _ in enumerate(futures)]


LARGE_FILE = """
import asyncio, os, resource, sys
from runstore import LocalStorage, TrainingRunStore

MB = 1024 * 1024
root = sys.argv[1]
path = os.path.join(root, "metrics.jsonl")
block = b"".join(b'{"step":%d,"x":"%s"}\\n' % (i, b"y" * 80) for i in range(10_000))
with open(path, "wb") as file:
    for _ in range(100):
        file.write(block)

class Counting(LocalStorage):
    count = 0

    async def aread_range(self, path, offset, length=None):
        data = await super().aread_range(path, offset, length)
        self.count += len(data)
        return data

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

storage = Counting(root)
store = TrainingRunStore(storage)
started = 0

async def follow(cursor, until):
    count = 0
    async for batch in store.afollow_metrics(cursor=cursor):
        count += len(batch)
        if batch.records[-1]["step"] == until:
            return count

async def main():
    tasks = [asyncio.create_task(follow("end", "last")) for _ in range(50)]
    await asyncio.sleep(0.5)
    at_start = storage.count
    whole = asyncio.create_task(follow(None, "last"))
    with open(path, "ab", buffering=0) as file:
        file.write(block)
        await asyncio.sleep(0.2)
        file.write(b'{"step":"last"}\\n')
    counts = await asyncio.gather(*tasks, whole)
    assert counts == [10_001] * 50 + [1_010_001], counts
    return at_start

before = peak()
at_start = asyncio.run(main())
size = os.path.getsize(path)
assert at_start < 1 * MB, at_start
assert storage.count < 1.2 * (size + 2 * len(block)), (storage.count, size)
print((peak() - before) // MB)
"""


def test_h02_memory_is_flat_on_a_large_file(tmp_path: Path) -> None:
    """Fifty followers of a 100 MB file read its end once, and one from its start holds a piece at a time."""
    script = tmp_path / "script.py"
    script.write_text(LARGE_FILE)
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, script, root], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes so small that the poller keeps little, and catching up takes many steps."""
    monkeypatch.setattr(_poller, "KEPT_SIZE", 2_000)
    monkeypatch.setattr(_follow, "CATCH_UP_SIZE", 700)
    monkeypatch.setattr(AsyncStorage, "fetch_size", 1_500)
    monkeypatch.setattr(_scan, "PIECE_SIZE", 300)


@pytest.mark.usefixtures("small_units")
def test_a_follower_that_falls_behind_drops_nothing(store: TrainingRunStore, path: Path) -> None:
    """One that comes back after more than the poller keeps reads on from its own place, repeating nothing."""
    path.write_bytes(lines(0, 10))
    with store.follow_metrics(interval=0.02) as slow, store.follow_metrics(interval=0.02) as quick:
        found = take(slow, 10)
        assert take(quick, 10) == found
        for start in range(10, 2010, 200):
            append(path, lines(start, start + 200))
            assert take(quick, 200) == list(range(start, start + 200))
            if start == 1010:
                found += take(slow, 30)
        assert found + take(slow, 2010 - len(found)) == list(range(2010))
        append(path, lines(2010, 2011))
        assert take(slow, 1) == take(quick, 1) == [2010]


@pytest.mark.usefixtures("small_units")
def test_many_followers_of_both_colours_see_all(store: TrainingRunStore, path: Path) -> None:
    """Threads, and tasks of several loops, follow one file that is written in odd pieces: each gets all."""
    shares: list[list[Any]] = [[] for _ in range(12)]

    def follow(share: list[Any]) -> None:
        for batch in store.follow_metrics():
            share += steps(batch.records)
            if 2999 in share:
                break

    async def afollow(share: list[Any]) -> None:
        async for batch in store.afollow_metrics():
            share += steps(batch.records)
            if 2999 in share:
                break

    async def four(first: int) -> None:
        await asyncio.gather(*[afollow(shares[first + index]) for index in range(4)])

    def write() -> None:
        data = lines(0, 3000)
        for start in range(0, len(data), 777):
            append(path, data[start : start + 777])

    in_threads(
        *[lambda share=share: follow(share) for share in shares[:4]],
        lambda: asyncio.run(four(4)),
        lambda: asyncio.run(four(8)),
        write,
    )
    assert shares == [list(range(3000))] * 12


def check_generations(batches: list[Batch], last: int) -> None:
    """Each batch is of one generation, and only a reset begins another; no record twice or left out."""
    generation, following = -1, 0
    for batch in batches:
        if batch.reset:
            following = 0
        for index, record in enumerate(batch.records):
            if index == 0 and (batch.reset or generation == -1):
                assert record["generation"] > generation
                generation = record["generation"]
            assert (record["generation"], record["step"]) == (generation, following)
            following += 1
    assert generation == last


def replace_often(path: Path, last: int) -> None:
    for generation in range(last + 1):
        replace(path, lines(0, 100 + 7 * ((last - generation) % 13), generation=generation))
        time.sleep(0.005)


@pytest.mark.usefixtures("small_units")
def test_d02_a_file_that_is_replaced_all_the_time(store: TrainingRunStore, path: Path) -> None:
    """While the file is replaced every few milliseconds, followers see each record once, never a mix."""
    last = 150
    batches: list[list[Batch]] = [[] for _ in range(4)]

    def follow(share: list[Batch]) -> None:
        for batch in store.follow_metrics(interval=0.02):
            share.append(batch)
            if {"generation": last, "step": 99} in batch:
                break

    async def afollow(share: list[Batch]) -> None:
        async for batch in store.afollow_metrics(interval=0.02):
            share.append(batch)
            if {"generation": last, "step": 99} in batch:
                break

    async def two() -> None:
        await asyncio.gather(afollow(batches[2]), afollow(batches[3]))

    in_threads(
        lambda: replace_often(path, last),
        lambda: follow(batches[0]),
        lambda: follow(batches[1]),
        lambda: asyncio.run(two()),
    )
    for share in batches:
        check_generations(share, last)
        assert any(batch.reset for batch in share)


@pytest.mark.anyio
async def test_every_follower_in_step_learns_of_a_replacement(store: TrainingRunStore, path: Path) -> None:
    """A replaced file is one batch with `reset` for each follower, a file emptied an empty one."""
    append(path, lines(0, 5))
    followers = [store.afollow_metrics(interval=0.02) for _ in range(3)]
    for follower in followers:
        assert await atake(follower, 5) == list(range(5))
    waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
    await await_until(lambda: len(_followers_in_step(path.parent)) == 3)
    replace(path, lines(10, 13))
    async with asyncio.timeout(DEADLINE):
        for batch in await asyncio.gather(*waiting):
            assert (steps(batch.records), batch.reset) == ([10, 11, 12], True)
        replace(path, b"")
        for follower in followers:
            batch = await anext(follower)
            assert (batch.records, batch.reset) == ([], True)
        append(path, lines(20, 21))
        for follower in followers:
            batch = await anext(follower)
            assert (steps(batch.records), batch.reset) == ([20], False)
            await follower.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("cursor", [None, "end"])
async def test_a_file_that_is_not_there_yet(tmp_path: Path, cursor: str | None) -> None:
    """A file, and its folder, may come into being while it is followed; that is no reset."""
    store = TrainingRunStore(LocalStorage(tmp_path / "later", mkdir=False))
    async with store.afollow_metrics(cursor=cursor, interval=0.02) as follower:
        first = asyncio.ensure_future(anext(follower))
        await await_until(lambda: _followers_in_step(tmp_path / "later"))
        await store.awrite_metrics({"step": 1})
        async with asyncio.timeout(DEADLINE):
            batch = await first
    assert (steps(batch.records), batch.reset) == ([1], False)


@pytest.mark.anyio
async def test_a_failure_is_raised_and_iterating_goes_on_from_there(tmp_path: Path, path: Path) -> None:
    """A storage that fails ends no follower: each raises it once, then goes on where it was."""
    append(path, lines(0, 3))
    storage = Failing(tmp_path)
    store = TrainingRunStore(storage)
    followers = [store.afollow_metrics(interval=0.02) for _ in range(3)]
    for follower in followers:
        assert await atake(follower, 3) == [0, 1, 2]
    for round_ in range(2):
        waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
        await await_until(lambda: len(_followers_in_step(tmp_path)) == 3)
        storage.failures = 1
        async with asyncio.timeout(DEADLINE):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [type(results[0])] * 3
        assert isinstance(results[0], RunStoreError)
        append(path, lines(3 + round_, 4 + round_))
        for follower in followers:
            assert await atake(follower, 1) == [3 + round_]
    for follower in followers:
        await follower.aclose()


def test_a_failure_while_catching_up_loses_nothing(tmp_path: Path, path: Path) -> None:
    """The same for a failure of the follower's own reads, and of its very first look."""
    path.write_bytes(lines(0, 10))
    cursor = TrainingRunStore(tmp_path).snapshot_metrics().cursor
    append(path, lines(10, 13))
    for start in (None, cursor):
        for failures in (1, 2, 3):
            storage = Failing(tmp_path)
            storage.failures = failures
            follower = TrainingRunStore(storage).follow_metrics(cursor=start, interval=0.02)
            found: list[Any] = []
            raised = 0
            while len(found) < (13 if start is None else 3):
                try:
                    found += steps(next(follower).records)
                except RunStoreError:
                    raised += 1
            follower.close()
            assert 1 <= raised <= failures
            assert found == list(range(0 if start is None else 10, 13))


@pytest.mark.anyio
async def test_a_change_is_seen_soon(
    store: TrainingRunStore, path: Path, record_property: Callable[[str, object], None]
) -> None:
    """On a local disk a record reaches its follower long before the interval is over."""
    seen: list[float] = []
    async with store.afollow_metrics(interval=5) as follower:
        waiting = asyncio.ensure_future(anext(follower))
        await await_until(lambda: _followers_in_step(path.parent))
        for step in range(20):
            written = time.monotonic()
            append(path, line(step=step))
            async with asyncio.timeout(DEADLINE):
                assert steps((await waiting).records) == [step]
            seen.append(time.monotonic() - written)
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0)
        waiting.cancel()
    record_property("median_latency", statistics.median(seen))
    assert statistics.median(seen) < 1


def test_malformed_lines_reach_no_follower(store: TrainingRunStore, path: Path) -> None:
    """What is no record is left out, and the records around it come."""
    path.write_bytes(b"garbage\n" + lines(0, 1) + b"[1]\n")
    with store.follow_metrics() as follower:
        assert take(follower, 1) == [0]
        append(path, b'more garbage\n{"step":1}{"step":2}x\n\n' + lines(3, 4))
        assert take(follower, 3) == [1, 2, 3]


def test_a_batch_is_iterated_as_its_records(store: TrainingRunStore, path: Path) -> None:
    """Iterating a batch iterates the records; it is frozen."""
    path.write_bytes(lines(0, 3))
    with store.follow_metrics() as follower:
        batch = next(follower)
    assert list(batch) == batch.records == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert len(batch) == 3
    with pytest.raises(AttributeError):
        batch.cursor = "x"  # type: ignore[misc]
    assert isinstance(store.follow_metrics(), Follower)
