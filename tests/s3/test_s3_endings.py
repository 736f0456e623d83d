"""However a process ends, what it appended is in the bucket: at once, or after the next start."""

import dataclasses
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.s3.place import Place
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server
from tests.scripts import run, start, write_script

DEV = ("-X", "dev", "-W", "error")
RECORDS = 10
LONGEST_EXIT = 5.0

# Writes ten records that nothing flushes, and ends as it is told.
WRITER = """
import asyncio, json, os, signal, sys, time
from runstore import TrainingRunStore, storage_from_uri

ending = sys.argv[3]
if "loaded" in sys.argv:
    import s3fs
storage = storage_from_uri(sys.argv[1], flush_interval=3600, **json.loads(sys.argv[2]))

def write():
    store = TrainingRunStore(storage)
    for step in range(10):
        store.write_metrics({"loss": 1.0}, step=step)
    print(time.time(), flush=True)
    return store

async def main():
    store = TrainingRunStore(storage)
    for step in range(10):
        await store.awrite_metrics({"loss": 1.0}, step=step)
    if ending == "async with":
        async with storage:
            pass
        os._exit(0)
    print(time.time(), flush=True)

if ending.startswith("async"):
    asyncio.run(main())
elif ending in {"with", "raise inside", "sys.exit inside"}:
    try:
        with storage:
            write()
            if ending == "raise inside":
                raise KeyError("the original")
            if ending == "sys.exit inside":
                sys.exit(3)
    finally:
        print(time.time(), flush=True)
    os._exit(0)
else:
    store = write()
if ending == "close":
    storage.close()
    os._exit(0)
elif ending == "raise outside":
    raise KeyError("the original")
elif ending == "sys.exit":
    sys.exit(3)
elif ending == "cycle":
    store.itself = store
    storage.itself = storage
    del store, storage
elif ending == "os._exit":
    os._exit(4)
elif ending == "checkpoint":
    store.write_checkpoint({"name": "000009", "batch": 9})
    os._exit(9)
elif ending.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, ending))
    signal.pause()
"""


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, s3_server.endpoint, spool_folder)


@pytest.fixture
def behind(place: Place, proxy: FaultProxy) -> Place:
    """The same place, reached through the proxy."""
    return dataclasses.replace(place, endpoint=proxy.endpoint)


def started(tmp_path: Path, place: Place, ending: str, *more: str) -> subprocess.Popen[str]:
    script = write_script(tmp_path, WRITER)
    return start(script, place.uri, json.dumps(place.options()), ending, *more, options=DEV)


def ended(process: subprocess.Popen[str]) -> tuple[str, float]:
    """What a writer said on standard error, and the seconds from the end of its work to its own."""
    with process:
        out, error = process.communicate(timeout=50)
    done = time.time()
    return error, done - float(out.split()[-1]) if out else 0.0


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("close", 0),
        ("with", 0),
        ("async with", 0),
        ("end", 0),
        ("async end", 0),
        ("cycle", 0),
        ("sys.exit", 3),
        ("sys.exit inside", 3),
        ("raise inside", 1),
        ("raise outside", 1),
    ],
)
def test_a01_b08_e04_an_orderly_end_leaves_every_record_in_the_bucket(
    place: Place, tmp_path: Path, ending: str, code: int
) -> None:
    """Closed or not, all is there at the end; the exit code and the exception are the script's own.

    Nothing else is printed, warnings being errors, and it takes less than 5 s.
    """
    process = started(tmp_path, place, ending)
    error, seconds = ended(process)
    assert process.returncode == code
    assert error.splitlines()[-1:] == (["KeyError: 'the original'"] if code == 1 else [])
    assert error.count("Traceback") == (code == 1)
    assert "runstore/" not in error
    assert seconds < LONGEST_EXIT
    assert place.steps() == list(range(RECORDS))
    assert place.spooled() == []


SUDDEN = {"SIGTERM": -signal.SIGTERM, "os._exit": 4, "SIGKILL": -signal.SIGKILL}


@pytest.mark.parametrize("ending", SUDDEN)
def test_a01_b08_a_sudden_end_leaves_them_to_the_next_start(
    place: Place, tmp_path: Path, ending: str
) -> None:
    """Nobody could deliver them: the next process of this machine that reads the file does, each once."""
    process = started(tmp_path, place, ending)
    error, _ = ended(process)
    assert (process.returncode, error) == (SUDDEN[ending], "")
    assert place.data() is None
    assert [row["step"] for row in place.run().read_metrics()] == list(range(RECORDS))
    assert place.steps() == list(range(RECORDS))
    assert place.spooled() == []


@pytest.mark.parametrize("asked", ["read", "flush"])
@pytest.mark.parametrize("before", ["read", "appended"])
def test_b08_a_process_that_goes_on_sees_what_another_left(
    place: Place, tmp_path: Path, before: str, asked: str
) -> None:
    """One that used the file before, and outlives a writer that was killed, delivers at its next call."""
    storage = place.storage()
    if before == "appended":
        storage.append_lines("metrics.jsonl", b'{"step": -1}\n')
        storage.flush()
    else:
        assert not storage.exists("metrics.jsonl")
    ended(started(tmp_path, place, "SIGKILL"))
    if asked == "read":
        storage.read("metrics.jsonl")
    else:
        storage.flush()
    assert place.steps() == [-1] * (before == "appended") + list(range(RECORDS))
    assert place.spooled() == []


def test_a02_a_checkpoint_is_in_the_bucket_when_its_call_returns(place: Place, tmp_path: Path) -> None:
    """`os._exit` right after `write_checkpoint`: the record is there."""
    process = started(tmp_path, place, "checkpoint")
    error, _ = ended(process)
    assert (process.returncode, error) == (9, "")
    assert place.records("checkpoints.jsonl") == [{"name": "000009", "batch": 9}]


@pytest.mark.parametrize(("ending", "code"), [("sys.exit", 3), ("raise inside", 1)])
def test_e04_b08_without_an_endpoint_a_process_ends_soon_and_says_what_it_kept(
    behind: Place, proxy: FaultProxy, tmp_path: Path, ending: str, code: int
) -> None:
    """Its own exit code and exception, within 5 s; what stayed, where and why; then it is delivered."""
    proxy.stop()
    process = started(tmp_path, behind, ending, "loaded")
    error, seconds = ended(process)
    assert process.returncode == code
    assert seconds < LONGEST_EXIT
    kept = error.splitlines()[-1]
    assert kept.startswith(f"SpoolKeptWarning: appends to {behind.uri}/metrics.jsonl could not be delivered")
    assert str(behind.spooled()[0].parent) in kept
    assert f"No answer from {behind.endpoint}" in kept
    lines = error.splitlines()[:-1]
    if ending == "raise inside":
        assert lines[-2] == "KeyError: 'the original'"
        assert lines[-1].startswith("Besides, closing the storage failed: ")
        assert error.count("Traceback") == 1
    else:
        assert lines == []
    proxy.start()
    assert [row["step"] for row in behind.run().read_metrics()] == list(range(RECORDS))
    assert behind.steps() == list(range(RECORDS))
    assert behind.spooled() == []


SLOW_START = """
import json, sys, time
from runstore import TrainingRunStore, storage_from_uri
from runstore.remote import _exit, _s3_client

make = _s3_client.S3Client._make_filesystem

def made_slowly(self, loop):
    time.sleep(1.5)
    return make(self, loop)

_s3_client.S3Client._make_filesystem = made_slowly
_exit.EXIT_SECONDS = 1.0
run = TrainingRunStore(storage_from_uri(sys.argv[1], flush_interval=3600, **json.loads(sys.argv[2])))
run.write_metrics({"loss": 1.0}, step=0)
"""


def test_e04_a_busy_machine_delivers_too(place: Place, tmp_path: Path) -> None:
    """What loading and making a client takes is not counted among the seconds that a server is waited for."""
    done = run(write_script(tmp_path, SLOW_START), place.uri, json.dumps(place.options()), options=DEV)
    assert (done.returncode, done.stderr) == (0, "")
    assert place.steps() == [0]


def test_e04_an_endpoint_that_hangs_does_not_hold_up_the_end(
    behind: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    """A server that says nothing to the upload is waited for 3 s; whether it acted is found out later."""
    upload = proxy.fail("hang", operation="PutObject", key=behind.key())
    process = started(tmp_path, behind, "end", "loaded")
    error, seconds = ended(process)
    assert process.returncode == 0
    assert 3 <= seconds < LONGEST_EXIT
    assert upload.hits == 1
    (kept,) = error.splitlines()
    assert kept.startswith(f"SpoolKeptWarning: appends to {behind.uri}/metrics.jsonl could not be delivered")
    proxy.heal()  # what hung goes on, with nobody waiting for it
    assert [row["step"] for row in behind.run().read_metrics()] == list(range(RECORDS))
    assert behind.steps() == list(range(RECORDS))
