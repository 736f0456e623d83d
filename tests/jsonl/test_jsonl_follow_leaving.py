"""Leaving a follower, in every way: it ends, and what it used is freed."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from runstore import AsyncFollower, Follower, LocalStorage, TrainingRunStore
from runstore.jsonl import _poller
from tests.jsonl.helpers import (
    DEADLINE,
    Failing,
    append,
    await_until,
    fork,
    lines,
    pollers_of,
    steps,
    wait_until,
)

INTERVAL = 0.05


@pytest.fixture
def store(tmp_path: Path) -> TrainingRunStore:
    append(tmp_path / "metrics.jsonl", lines(0, 3))
    return TrainingRunStore(tmp_path)


def follow(store: TrainingRunStore, cursor: str | None = None) -> Follower:
    return store.follow_metrics(cursor=cursor, interval=INTERVAL)


def afollow(store: TrainingRunStore, cursor: str | None = None) -> AsyncFollower:
    return store.afollow_metrics(cursor=cursor, interval=INTERVAL)


def waits(follower: Follower | AsyncFollower) -> bool:
    """Whether a follower has all there is, so that its next step waits."""
    inner = follower._follow
    head = None if inner._poller is None else inner._poller.head
    return head is not None and inner._taken == head.count


def leave_by_break(store: TrainingRunStore) -> None:
    for _ in follow(store):
        break


def leave_by_close(store: TrainingRunStore) -> None:
    follower = follow(store)
    next(follower)
    follower.close()
    follower.close()
    assert list(follower) == []


def leave_by_with(store: TrainingRunStore) -> None:
    with contextlib.suppress(ZeroDivisionError), follow(store) as follower:
        next(follower)
        raise ZeroDivisionError


def leave_by_forgetting(store: TrainingRunStore) -> None:
    follower = follow(store)
    next(follower)
    cycle: list[Any] = [follower]
    cycle.append(cycle)


def leave_unstarted(store: TrainingRunStore) -> None:
    follow(store)
    with follow(store):
        pass
    closed = follow(store)
    closed.close()
    assert list(closed) == []


@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_close, leave_by_with, leave_by_forgetting, leave_unstarted]
)
def test_a_sync_follower_that_is_left_is_freed(
    store: TrainingRunStore, tmp_path: Path, leave: Callable[[TrainingRunStore], None]
) -> None:
    """However a loop is left, no poller is at work an interval later; following again starts anew."""
    for _ in range(2):
        leave(store)
        wait_until(lambda: not pollers_of(tmp_path))
    with follow(store) as again:
        assert steps(next(again).records) == [0, 1, 2]


async def aleave_by_break(store: TrainingRunStore) -> None:
    async for _ in afollow(store):
        break


async def aleave_by_close(store: TrainingRunStore) -> None:
    follower = afollow(store)
    await anext(follower)
    await follower.aclose()
    await follower.aclose()
    assert [batch async for batch in follower] == []


async def aleave_by_with(store: TrainingRunStore) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with afollow(store) as follower:
            await anext(follower)
            raise ZeroDivisionError


async def aleave_by_forgetting(store: TrainingRunStore) -> None:
    follower = afollow(store)
    await anext(follower)
    cycle: list[Any] = [follower]
    cycle.append(cycle)


async def aleave_by_cancelling(store: TrainingRunStore) -> None:
    async def wait() -> None:
        async for _ in afollow(store):
            pass

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(INTERVAL)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def aleave_by_timeout(store: TrainingRunStore) -> None:
    with anyio.move_on_after(INTERVAL):
        async for _ in afollow(store):
            pass


@pytest.mark.anyio
@pytest.mark.parametrize(
    "leave",
    [
        aleave_by_break,
        aleave_by_close,
        aleave_by_with,
        aleave_by_forgetting,
        aleave_by_cancelling,
        aleave_by_timeout,
    ],
)
async def test_an_async_follower_that_is_left_is_freed(
    store: TrainingRunStore, tmp_path: Path, leave: Callable[[TrainingRunStore], Any]
) -> None:
    """The same for the async twin, cancellation included."""
    for _ in range(2):
        await leave(store)
        await await_until(lambda: not pollers_of(tmp_path))
    async with afollow(store) as again:
        assert steps((await anext(again)).records) == [0, 1, 2]


@pytest.mark.anyio
async def test_a_cancelled_step_loses_nothing(store: TrainingRunStore, tmp_path: Path) -> None:
    """A step given up again and again repeats and drops nothing when it is taken up."""
    found: list[Any] = []
    async with afollow(store) as follower, asyncio.timeout(DEADLINE):
        for step in range(3, 60):
            append(tmp_path / "metrics.jsonl", lines(step, step + 1))
            with anyio.move_on_after(0.002 * (step % 4)):
                found += steps((await anext(follower)).records)
        while 59 not in found:
            found += steps((await anext(follower)).records)
    assert found == list(range(60))


@pytest.mark.anyio
@pytest.mark.parametrize("elsewhere", ["task", "thread", "loop"])
async def test_an_async_follower_is_closed_while_it_waits(
    store: TrainingRunStore, tmp_path: Path, elsewhere: str
) -> None:
    """`aclose` from another task, thread or loop ends the loop of the task that waits."""
    follower = afollow(store)

    async def collect() -> list[Any]:
        return [step async for batch in follower for step in steps(batch.records)]

    async with asyncio.timeout(DEADLINE):
        waiting = asyncio.ensure_future(collect())
        await await_until(lambda: waits(follower))
        if elsewhere == "task":
            await follower.aclose()
        elif elsewhere == "thread":
            await anyio.to_thread.run_sync(follower._follow.close)
        else:
            await anyio.to_thread.run_sync(lambda: asyncio.run(follower.aclose()))
        assert await waiting == [0, 1, 2]
    await await_until(lambda: not pollers_of(tmp_path))


def test_a_sync_follower_is_closed_while_it_waits(store: TrainingRunStore, tmp_path: Path) -> None:
    """`close` from another thread ends the loop of the thread that waits."""
    follower = follow(store)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(steps([r for batch in follower for r in batch])))
    thread.start()
    wait_until(lambda: waits(follower))
    follower.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert found == [0, 1, 2]
    wait_until(lambda: not pollers_of(tmp_path))


def test_nothing_of_a_follower_stays(store: TrainingRunStore, tmp_path: Path) -> None:
    """Followers made, used and left by the hundred leave no object, poller or thread behind."""
    for _ in follow(store):
        break
    threads = threading.active_count()
    dead = []
    for turn in range(200):
        follower = follow(store, None if turn % 2 else "end")
        if turn % 2:
            next(follower)
        dead.append(weakref.ref(follower._follow))
        del follower
    gc.collect()
    assert not any(reference() for reference in dead)
    wait_until(lambda: not pollers_of(tmp_path))
    assert threading.active_count() <= threads + 2


def wait_in_a_closed_loop(follower: AsyncFollower) -> asyncio.Task[Any]:
    """The task that waits for the follower's second batch, its loop closed under it."""

    async def start() -> asyncio.Task[Any]:
        await anext(follower)
        waiting = asyncio.ensure_future(anext(follower))
        await await_until(lambda: waits(follower))
        return waiting

    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(start())
    loop.close()
    return waiting


def test_the_others_follow_on_when_some_leave(store: TrainingRunStore, tmp_path: Path) -> None:
    """Followers that leave, and one whose loop was closed under it, disturb nobody."""
    staying = follow(store)
    assert steps(next(staying).records) == [0, 1, 2]
    abandoned = afollow(store)
    waiting = wait_in_a_closed_loop(abandoned)
    leave_by_break(store)
    append(tmp_path / "metrics.jsonl", lines(3, 5))
    assert steps(next(staying).records) == [3, 4]
    append(tmp_path / "metrics.jsonl", lines(5, 6))
    assert steps(next(staying).records) == [5]
    staying.close()
    assert not waiting.done()
    del waiting, abandoned
    wait_until(lambda: not pollers_of(tmp_path))


def test_a_failed_poller_is_forgotten(tmp_path: Path) -> None:
    """A poller that its storage ended stays nowhere, whether its follower comes back or not."""
    append(tmp_path / "metrics.jsonl", lines(0, 3))
    storage = Failing(tmp_path)
    follower = follow(TrainingRunStore(storage))
    assert steps(next(follower).records) == [0, 1, 2]
    storage.failures = 1
    wait_until(lambda: not pollers_of(tmp_path))
    assert storage.failures == 0
    follower.close()


def test_a_forked_child_follows_on(store: TrainingRunStore, tmp_path: Path) -> None:
    """In a child forked while followers are at work, they go on or are left, and others start."""
    mine, other = follow(store), follow(store)
    assert steps(next(mine).records) == steps(next(other).records) == [0, 1, 2]
    held, release = threading.Event(), threading.Event()
    poller = mine._follow._poller
    assert poller is not None

    def hold() -> None:
        with poller._changed:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    child = fork()
    if child == 0:
        signal.alarm(20)
        other.close()
        append(tmp_path / "metrics.jsonl", lines(3, 4))
        good = steps(next(mine).records) == [3] and list(other) == []
        with follow(store) as new:
            good = good and steps(next(new).records) == [0, 1, 2, 3]
        os._exit(0 if good else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    release.set()
    holder.join()
    assert code == 0
    assert steps(next(mine).records) == [3]
    mine.close()
    other.close()


INTERRUPTED = """
import asyncio, signal, sys, time
from runstore import TrainingRunStore

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
store = TrainingRunStore(sys.argv[1])
store.write_metrics({"step": 0})

def follow():
    for batch in follower:
        print("ready", flush=True)

async def afollow():
    async for batch in store.afollow_metrics():
        print("ready", flush=True)

follower = store.follow_metrics()
try:
    asyncio.run(afollow()) if sys.argv[2] == "async" else follow()
except KeyboardInterrupt:
    print("interrupted", flush=True)
store.write_metrics({"step": 1})
assert [record["step"] for record in store.read_metrics()] == [0, 1]
for batch in follower:
    if batch.records[-1]["step"] == 1:
        break
print("works", flush=True)
"""


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_e07_control_c_ends_a_follower_loop(tmp_path: Path, colour: str) -> None:
    """SIGINT in a follower's loop is a KeyboardInterrupt within a second, and the store works on."""
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    arguments = [sys.executable, "-X", "dev", "-W", "error", str(script), str(tmp_path / "run"), colour]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)  # so that it waits for the next record
        child.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent < 1
        assert child.stdout.readline() == "works\n"
        assert child.wait(DEADLINE) == 0
        assert child.stderr.read() == ""


PENDING = """
import asyncio, sys
from runstore import TrainingRunStore

store = TrainingRunStore(sys.argv[1])
kept = []

async def main():
    for cursor in (None, "end"):
        follower = store.afollow_metrics(cursor=cursor)
        kept.append(follower)
        asyncio.create_task(wait(follower))
    async with asyncio.timeout(20):
        while any(follower._follow._position is None for follower in kept):  # "end" is where it first looks
            await asyncio.sleep(0.01)
    kept.append(store.afollow_metrics())

async def wait(follower):
    async for batch in follower:
        pass

async def again():
    store.write_metrics({"step": 1})
    for follower in kept:
        batch = await asyncio.wait_for(anext(follower), 10)
        assert batch.records == [{"step": 1}], batch

asyncio.run(main())
asyncio.run(again())
asyncio.run(main())
print("ended")
"""


def test_followers_pending_at_the_end_of_a_loop_warn_of_nothing(tmp_path: Path) -> None:
    """`asyncio.run` with followers pending ends quietly, they go on in the next one, and the process ends."""
    script = tmp_path / "script.py"
    script.write_text(PENDING)
    arguments = [sys.executable, "-X", "dev", "-W", "error", str(script), str(tmp_path / "run")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.anyio
async def test_closing_while_the_first_step_begins_leaves_nothing_behind(tmp_path: Path) -> None:
    """A follower that is closed before it has joined its poller is not kept by it."""
    store = TrainingRunStore(LocalStorage(tmp_path))
    store.write_metrics({"loss": 1.0}, step=1)
    followers = [store.afollow_metrics(cursor="end", interval=0.02) for _ in range(20)]
    steps = [asyncio.ensure_future(anext(follower, None)) for follower in followers]
    await asyncio.sleep(0)
    for follower in followers:
        await follower.aclose()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*steps) == [None] * 20
    await await_until(lambda: not _poller.pollers._by_file)
