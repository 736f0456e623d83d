"""What others do to a bucket meanwhile is seen, each record once and whole."""

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runstore import Batch, RunRegistry, TrainingRunStore
from tests.s3.place import METRICS, Place
from tests.s3.server import S3Server
from tests.scripts import run, start, write_script


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, s3_server.endpoint, spool_folder)


ADDER = """
import json, sys
from runstore import TrainingRunStore, storage_from_uri

storage = storage_from_uri(sys.argv[1], **json.loads(sys.argv[2]))
TrainingRunStore(storage, "first").write_rollouts(3, [{"group_idx": 0}])
TrainingRunStore(storage, "second").write_config({})
"""


def test_d01_what_another_process_adds_is_listed(place: Place, tmp_path: Path) -> None:
    """A run and an iteration that another process made are there the next time one looks."""
    storage = place.storage()
    first = TrainingRunStore(storage, "first")
    first.write_metrics({"loss": 1.0}, step=0)
    registry = RunRegistry([storage])
    assert [info.run_id for info in registry.refresh()] == ["first"]
    assert [first.list_iterations(), storage.list_dir("")] == [[], ["first"]]
    assert first.read_rollouts(3) == []
    done = run(write_script(tmp_path, ADDER), place.uri, json.dumps(place.options()))
    assert done.returncode == 0, done.stderr
    assert {info.run_id for info in registry.refresh()} == {"first", "second"}
    assert [info.iteration for info in first.list_iterations()] == [3]
    assert storage.list_dir("") == ["first", "second"]
    assert first.read_rollouts(3) == [{"group_idx": 0}]


@contextmanager
def replacing(place: Place, content: Callable[[int], bytes]) -> Iterator[Callable[[], int]]:
    """Somebody who replaces the metrics every 50 ms; calling what this gives stops it at a last number."""
    stopped = threading.Event()
    last = [0]

    def replace() -> None:
        for number in itertools.count(1):
            place.put(content(number))
            last[0] = number
            if stopped.wait(0.05):
                return

    def stop() -> int:
        stopped.set()
        thread.join(10)
        return last[0]

    place.put(content(0))
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        yield stop
    finally:
        stop()


Last = Callable[[Batch, int], bool]


def followed(place: Place, seconds: float, stop: Callable[[], int], last: Last) -> list[Batch]:
    """The batches of a follower for so long, and until it has the last of what was written."""
    end = time.monotonic() + seconds
    number = None
    batches = []
    for batch in place.run().follow_metrics(interval=0.02):
        batches.append(batch)
        if number is None and time.monotonic() > end:
            number = stop()
        if number is not None and last(batch, number):
            break
    return batches


def test_d02_a_file_that_is_written_anew_and_longer(place: Place) -> None:
    """As other stores append: for 5 s, every 50 ms; each record comes once, in order, without a reset."""

    def content(number: int) -> bytes:
        return b"".join(b'{"step": %d, "text": "%s"}\n' % (step, b"x" * step) for step in range(number + 1))

    with replacing(place, content) as stop:
        batches = followed(place, 5, stop, lambda batch, number: batch.records[-1]["step"] == number)
    steps = [record["step"] for batch in batches for record in batch]
    assert steps == list(range(len(steps)))
    assert len(steps) > 20
    assert not any(batch.reset for batch in batches[1:])


def test_d02_a_file_that_becomes_another_one(place: Place) -> None:
    """For 2 s, every 50 ms: what comes is of one content, from its beginning, after a reset; never a mix."""

    def content(number: int) -> bytes:
        lines = (b'{"content": %d, "step": %d}\n' % (number, step) for step in range(50 + number * 7 % 40))
        return b"".join(lines)

    with replacing(place, content) as stop:
        batches = followed(place, 2, stop, lambda batch, number: batch.records[-1]["content"] == number)
    seen: dict[int, list[int]] = {}
    for batch in batches:
        (number,) = {record["content"] for record in batch}
        assert batch.reset or number in seen or not seen
        seen.setdefault(number, []).extend(record["step"] for record in batch)
    assert len(seen) > 10
    for number, steps in seen.items():
        assert steps == list(range(50 + number * 7 % 40))


def test_d02_a_read_is_of_one_moment(place: Place) -> None:
    """Reading a file that is replaced meanwhile gives one content, whole."""
    with replacing(place, lambda number: b"%06d\n" % number * 50_000) as stop:
        storage, end = place.storage(), time.monotonic() + 1.5
        while time.monotonic() < end:
            data = storage.read(METRICS)
            assert len(data) == 7 * 50_000
            assert data == data[:7] * 50_000
        assert stop() > 5


# Appends and flushes as it is told, and answers each line.
TOLD = """
import json, sys
from runstore import storage_from_uri

storage = storage_from_uri(sys.argv[1], flush_interval=3600, **json.loads(sys.argv[2]))
for line in sys.stdin:
    name, text = line.split()
    if text == "flush":
        storage.flush()
    else:
        storage.append_lines(name, json.dumps({"text": text}).encode() + b"\\n")
    print("done", flush=True)
"""
ORDERS = ("aAfAaBfB", "aAaBfAfB", "aAaBfBfA", "aBaAfAfB")


def tell(process: subprocess.Popen[str], name: str, what: str) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{name} {what}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_d04_interleaved_writers_keep_every_record(place: Place, tmp_path: Path) -> None:
    """Two processes, one key: in each order of two appends and flushes, of a new file and an old one."""
    script = write_script(tmp_path, TOLD)
    arguments = (place.uri, json.dumps(place.options()))
    with start(script, *arguments) as first, start(script, *arguments) as second:
        processes = {"A": first, "B": second}
        for order, attempt in itertools.product(ORDERS, range(2)):
            name = f"{order}.jsonl"
            for action, who in zip(order[::2], order[1::2], strict=True):
                tell(processes[who], name, "flush" if action == "f" else f"{who}{attempt}")
        for process in processes.values():
            out, error = process.communicate(timeout=30)
            assert (process.returncode, out, error) == (0, "", "")
    for order in ORDERS:
        texts = [record["text"] for record in place.records(f"{order}.jsonl")]
        assert sorted(texts) == ["A0", "A1", "B0", "B1"]
        flushed = [who for action, who in zip(order[::2], order[1::2], strict=True) if action == "f"]
        assert [text[0] for text in texts] == flushed * 2


@pytest.mark.parametrize("order", ORDERS)
def test_d04_interleaved_storages_of_one_process_keep_every_record(place: Place, order: str) -> None:
    """The same with two storages in one process, whose appends stay in the order of their calls."""
    storages = {"A": place.storage(), "B": place.storage()}
    for action, who in zip(order[::2], order[1::2], strict=True):
        if action == "f":
            storages[who].flush()
        else:
            storages[who].append_lines(METRICS, json.dumps({"text": who}).encode() + b"\n")
    appended = [who for action, who in zip(order[::2], order[1::2], strict=True) if action == "a"]
    assert [record["text"] for record in place.records()] == appended
