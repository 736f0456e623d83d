"""Following a run through its store: snapshots, cursors, metrics and timing in both colours."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from runstore import AsyncFollower, Batch, Follower, InvalidInputError, TrainingRunStore
from tests.stores.helpers import Call, RunFolder


async def collect(follower: AsyncFollower, count: int) -> list[Batch]:
    """Batches until they hold so many records."""
    batches: list[Batch] = []
    with anyio.fail_after(20):
        async for batch in follower:
            batches.append(batch)
            if sum(map(len, batches)) >= count:
                break
    await follower.aclose()
    return batches


def collect_sync(follower: Follower, count: int) -> list[Batch]:
    """As `collect`, in this thread."""
    batches: list[Batch] = []
    with follower:
        for batch in follower:
            batches.append(batch)
            if sum(map(len, batches)) >= count:
                break
    return batches


def steps(batches: list[Batch]) -> list[int]:
    return [record["step"] for batch in batches for record in batch]


@pytest.mark.anyio
async def test_h01_from_a_snapshot_nothing_is_missed_or_repeated(store: TrainingRunStore, call: Call) -> None:
    """Snapshot, 5 appends, follow from its cursor, drop, 5 more, follow on: each of the 10 once."""
    for step in range(5):
        await call(store.awrite_metrics, {}, step)
    snapshot = await call(store.asnapshot_metrics)
    assert isinstance(snapshot, Batch)
    assert steps([snapshot]) == [0, 1, 2, 3, 4]
    for step in range(5, 10):
        await call(store.awrite_metrics, {}, step)
    first = await collect(store.afollow_metrics(cursor=snapshot.cursor), 5)
    assert steps(first) == [5, 6, 7, 8, 9]
    for step in range(10, 15):
        await call(store.awrite_metrics, {}, step)
    second = await collect(store.afollow_metrics(cursor=first[-1].cursor), 5)
    assert steps(second) == [10, 11, 12, 13, 14]
    assert not any(batch.reset for batch in (snapshot, *first, *second))


@pytest.mark.anyio
async def test_a_snapshot_of_nothing(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A run without metrics has an empty snapshot, whose cursor is good for what comes."""
    snapshot = await call(store.asnapshot_metrics)
    assert list(snapshot) == []
    assert not run.exists()
    await call(store.awrite_metrics, {}, 1)
    assert steps(await collect(store.afollow_metrics(cursor=snapshot.cursor), 1)) == [1]


@pytest.mark.anyio
async def test_a_snapshot_holds_what_others_read_already(store: TrainingRunStore, call: Call) -> None:
    """The snapshot has all buffered metrics, also those that another user of the store took as new."""
    await call(store.awrite_metrics, {}, 1)
    await call(store.aread_new_metrics)
    await call(store.awrite_metrics, {}, 2)
    assert steps([await call(store.asnapshot_metrics)]) == [1, 2]
    assert await call(store.aread_new_metrics) == []


@pytest.mark.anyio
async def test_the_metrics_cursor_is_the_place_after_the_last_read(
    store: TrainingRunStore, call: Call
) -> None:
    """A follower from `metrics_cursor()` goes on where this store's reads ended."""
    start = store.metrics_cursor()
    await call(store.awrite_metrics, {}, 1)
    assert store.metrics_cursor() == start
    await call(store.aread_new_metrics)
    cursor = store.metrics_cursor()
    assert cursor != start
    assert cursor.isprintable()
    await call(store.awrite_metrics, {}, 2)
    assert steps(await collect(store.afollow_metrics(cursor=cursor), 1)) == [2]
    assert steps(await collect(store.afollow_metrics(cursor=start), 2)) == [1, 2]


@pytest.mark.anyio
async def test_followers_see_what_is_written(store: TrainingRunStore) -> None:
    """From the first record, and only what comes: metrics and timing, as they are written."""
    await store.awrite_metrics({}, 1)
    await store.awrite_timing_spans(1, [{"name": "a"}])
    everything = store.afollow_metrics(interval=0.05)
    timing = store.afollow_timing(interval=0.05)
    with anyio.fail_after(20):
        assert steps([await anext(everything)]) == [1]
        assert list(await anext(timing)) == [{"step": 1, "spans": [{"name": "a"}]}]
    await store.awrite_metrics({}, 2)
    assert steps(await collect(store.afollow_metrics(), 2)) == [1, 2]
    late: list[Batch] = []
    async with anyio.create_task_group() as tasks:

        async def follow_from_the_end() -> None:
            late.extend(await collect(store.afollow_metrics(cursor="end", interval=0.05), 2))

        tasks.start_soon(follow_from_the_end)
        with anyio.fail_after(20):
            for step in range(3, 1_000):
                await store.awrite_metrics({}, step)
                await anyio.sleep(0.02)
                if late:
                    break
    assert steps(late)[0] >= 3
    assert steps(late) == list(range(steps(late)[0], steps(late)[0] + len(steps(late))))
    await store.awrite_timing_spans(2, [{"name": "b"}])
    assert [record["step"] for batch in await collect(timing, 1) for record in batch] == [2]
    seen = steps(await collect(everything, steps(late)[-1] - 1))
    assert seen[: steps(late)[-1] - 1] == list(range(2, steps(late)[-1] + 1))


def test_sync_followers_see_what_is_written(store: TrainingRunStore) -> None:
    """The sync twins wait in their own thread, and give the same records with the same cursors."""
    store.write_metrics({}, 1)
    store.write_timing_spans(1, [{"name": "a"}])
    follower = store.follow_metrics(interval=0.05)
    first = next(follower)
    assert steps([first]) == [1]
    rest: list[Batch] = []
    thread = threading.Thread(target=lambda: rest.extend(collect_sync(follower, 3)))
    thread.start()
    for step in (2, 3, 4):
        store.write_metrics({}, step)
    thread.join(20)
    assert steps(rest) == [2, 3, 4]
    assert steps(collect_sync(store.follow_metrics(cursor=first.cursor), 3)) == [2, 3, 4]
    assert steps(collect_sync(store.follow_timing(cursor=None), 1)) == [1]


@pytest.mark.anyio
async def test_a_follower_sees_a_truncation_as_a_reset(store: TrainingRunStore) -> None:
    """After `truncate_metrics` a follower starts the new file anew, and its batch says so."""
    for step in range(10):
        await store.awrite_metrics({"run": "old"}, step)
    follower = store.afollow_metrics(interval=0.05)
    with anyio.fail_after(20):
        first = await anext(follower)
        while len(first) < 10:
            first = Batch(first.records + (batch := await anext(follower)).records, batch.cursor)
        await store.atruncate_metrics(5)
        batch = await anext(follower)
    assert batch.reset
    records = list(batch)
    await store.awrite_metrics({"run": "new"}, 5)
    records += [record for batch in await collect(follower, 6 - len(records)) for record in batch]
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4, 5]
    assert records[-1]["run"] == "new"
    stale = await collect(store.afollow_metrics(cursor=first.cursor), 6)
    assert stale[0].reset
    assert steps(stale) == [0, 1, 2, 3, 4, 5]


@pytest.mark.anyio
@pytest.mark.parametrize("cursor", ["", "start", "1.2.3", "0", "1.5.5.zz", "\0"])
async def test_h01_a_string_that_is_no_cursor(store: TrainingRunStore, cursor: str) -> None:
    """It is a `ValueError`, by the call or the first step, in both colours."""
    with pytest.raises(InvalidInputError, match="cursor"):
        await anext(store.afollow_metrics(cursor=cursor))
    with pytest.raises(InvalidInputError, match="cursor"):
        next(store.follow_metrics(cursor=cursor))
    with pytest.raises(InvalidInputError, match="cursor"):
        await anext(store.afollow_timing(cursor=cursor))
    with pytest.raises(InvalidInputError, match="cursor"):
        next(store.follow_timing(cursor=cursor))


@pytest.mark.parametrize("interval", [0, -1.0])
def test_an_interval_is_positive(store: TrainingRunStore, interval: float) -> None:
    """An interval that is no time to wait is a `ValueError`."""
    for follow in (
        store.afollow_metrics,
        store.follow_metrics,
        store.afollow_timing,
        store.follow_timing,
    ):
        with pytest.raises(InvalidInputError, match="interval"):
            follow(interval=interval)


@pytest.mark.anyio
async def test_a_closed_follower_ends(store: TrainingRunStore) -> None:
    """`aclose` ends the loop, before the first step and after some, and may be called twice."""
    follower = store.afollow_metrics()
    await follower.aclose()
    assert [batch async for batch in follower] == []
    await store.awrite_metrics({}, 1)
    follower = store.afollow_metrics()
    with anyio.fail_after(20):
        await anext(follower)
    await follower.aclose()
    await follower.aclose()
    assert [batch async for batch in follower] == []


@pytest.mark.anyio
async def test_a_closed_follower_wakes_who_waits(store: TrainingRunStore) -> None:
    """A task that waits for the next batch sees the end of the loop when another one closes it."""
    follower = store.afollow_metrics()
    ended = anyio.Event()

    async def wait() -> None:
        async for _ in follower:
            pass
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await follower.aclose()
        with anyio.fail_after(20):
            await ended.wait()


WRITER = """
import sys
from runstore import TrainingRunStore
store = TrainingRunStore(sys.argv[1])
for step in range(200):
    store.write_metrics({"pad": "x" * step}, step)
    if step % 50 == 0:
        print(step, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def writer(run: RunFolder) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def test_another_process_s_records_arrive_once_each(
    store: TrainingRunStore, writer: subprocess.Popen[str]
) -> None:
    """What another process writes arrives in order, each record once; snapshots meanwhile agree."""
    assert writer.stdin is not None
    writer.stdin.write("\n" * 10)
    writer.stdin.flush()
    seen: list[dict[str, Any]] = []
    with store.follow_metrics(interval=0.05) as follower:
        for batch in follower:
            seen += batch
            snapshot = store.snapshot_metrics()
            assert snapshot.records[: len(seen)] == seen[: len(snapshot)]
            if len(seen) >= 200:
                break
    assert [record["step"] for record in seen] == list(range(200))
