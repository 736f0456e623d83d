"""Cancelled calls and Ctrl-C: what was asked for is over when they raise, and the storage works on."""

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from tests.s3.place import Place
from tests.s3.proxy import FaultProxy, Rule
from tests.s3.server import S3Server
from tests.scripts import start, write_script


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, proxy: FaultProxy, spool_folder: Path) -> Place:
    place = Place(s3_server, s3_prefix, proxy.endpoint, spool_folder)
    place.put(b"there", "f")
    return place


async def hit(rule: Rule) -> None:
    await asyncio.to_thread(rule.wait)


@pytest.mark.anyio
async def test_a_cancelled_write_has_finished(place: Place, proxy: FaultProxy) -> None:
    """Its caller is held until the server has answered: nothing of it happens afterwards."""
    storage = place.storage()
    rule = proxy.fail("hang", operation="PutObject")
    writing = asyncio.ensure_future(storage.awrite("f", b"new"))
    await hit(rule)
    writing.cancel()
    done, _ = await asyncio.wait([writing], timeout=0.2)
    assert not done
    writing.cancel()
    rule.release()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert place.data("f") == b"new"
    proxy.heal()
    await storage.awrite("f", b"newer")
    assert await storage.aread("f") == b"newer"


@pytest.mark.anyio
async def test_a_cancelled_flush_has_finished(place: Place, proxy: FaultProxy) -> None:
    """What was appended is in the bucket once when the cancellation is raised."""
    storage = place.storage()
    await storage.aappend("a", b"1\n")
    rule = proxy.fail("hang", operation="PutObject")
    flushing = asyncio.ensure_future(storage.aflush())
    await hit(rule)
    flushing.cancel()
    rule.release()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    assert place.data("a") == b"1\n"
    assert place.spooled() == []


@pytest.mark.anyio
async def test_a_cancelled_read_ends_at_once(place: Place, proxy: FaultProxy) -> None:
    """A server that does not answer holds nobody who gave up; later reads go through."""
    storage = place.storage()
    assert await storage.aread("f") == b"there"
    rule = proxy.fail("hang", operation={"GetObject", "HeadObject", "ListObjectsV2"})
    begin = time.monotonic()
    for reading in (storage.aread("f"), storage.astat("f"), storage.alist_dir("")):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reading, 0.1)
    assert time.monotonic() - begin < 2
    await hit(rule)
    proxy.heal()
    assert await storage.aread("f") == b"there"


@pytest.mark.anyio
async def test_calls_cancelled_at_any_moment_leave_the_storage_whole(place: Place) -> None:
    """Whenever the cancellation comes, a write is there or not, and the next one is never overtaken."""
    storage = place.storage()
    await storage.awrite("f", b"0")
    for turns in range(12):
        for call in (storage.awrite("f", b"cancelled"), storage.aread("f"), storage.aflush()):
            task = asyncio.ensure_future(call)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await storage.awrite("f", b"last")
        assert await storage.aread("f") == b"last"
    await asyncio.sleep(0.05)
    assert place.data("f") == b"last"


READER = """
import json, signal, sys, time
from runstore import TrainingRunStore, storage_from_uri

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
storage = storage_from_uri(sys.argv[1], **json.loads(sys.argv[2]))
run = TrainingRunStore(storage)
if sys.argv[3] == "follower":
    followed = run.follow_metrics(interval=0.05)
    assert len(next(followed).records) == 1
print("ready", flush=True)
sys.stdin.readline()
try:
    if sys.argv[3] == "read":
        storage.read("f")
    elif sys.argv[3] == "flush":
        run.write_metrics({"loss": 1.0}, step=1)
        storage.flush()
    else:
        next(followed)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
assert storage.read("f") == b"there"
run.write_metrics({"loss": 1.0}, step=2)
print([record["step"] for record in run.read_metrics()], flush=True)
"""


@pytest.mark.parametrize("call", ["read", "flush", "follower"])
def test_e07_ctrl_c_ends_a_slow_call(place: Place, proxy: FaultProxy, tmp_path: Path, call: str) -> None:
    """KeyboardInterrupt within 1 s, in a call without an answer or a follower that waits; then all works."""
    place.put(b'{"step": 0}\n')
    script = write_script(tmp_path, READER)
    with start(script, place.uri, json.dumps(place.options()), call) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        rule = proxy.fail("hang", operation="PutObject" if call == "flush" else "GetObject")
        process.stdin.write("\n")
        process.stdin.flush()
        rule.wait()
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begin < 1
        proxy.heal()
        out, error = process.communicate("\n", timeout=30)
    assert (process.returncode, error) == (0, "")
    steps = [0, 1, 2] if call == "flush" else [0, 2]
    assert json.loads(out) == steps
    assert place.steps() == steps
