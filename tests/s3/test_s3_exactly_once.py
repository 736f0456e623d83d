"""Every acknowledged append is in the object once: many writers, lost replies, killed processes."""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runstore import storage_from_uri
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.server import S3Server
from tests.scripts import start, write_script

WRITERS = 8
RECORDS = 50

# Appends records and says each one's number when it is acknowledged; flushes now and then.
WRITER = """
import json, random, sys, time
from runstore import TrainingRunStore, storage_from_uri

uri, options, writer, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(writer)
with storage_from_uri(uri, flush_interval=0.3, **options) as storage:
    run = TrainingRunStore(storage)
    for number in range(50):
        run.write_metrics({"writer": writer, "number": number, "text": "x" * size})
        print(number, flush=True)
        if chance.random() < 0.3:
            storage.flush()
        time.sleep(chance.random() * 0.02)
"""


@contextmanager
def writers(tmp_path: Path, uri: str, options: object, size: int) -> Iterator[list[subprocess.Popen[str]]]:
    script = write_script(tmp_path, WRITER)
    arguments = (uri, json.dumps(options))
    started = [start(script, *arguments, writer, size) for writer in range(WRITERS)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def acknowledged(process: subprocess.Popen[str], seconds: float = 55) -> list[int]:
    """The numbers of the records that a writer's appends returned for."""
    out, error = process.communicate(timeout=seconds)
    assert process.returncode in {0, -9}, error
    return [int(line) for line in out.split()]


def killed(process: subprocess.Popen[str], after: int) -> list[int]:
    """The same for a writer that is killed once it has acknowledged so many."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after)]
    if "" in lines:  # it ended by itself
        raise AssertionError(process.communicate(timeout=30)[1])
    process.kill()
    lines += process.stdout.read().splitlines()
    process.wait(30)
    return [int(line) for line in lines]


def check(data: bytes | None, acknowledgements: list[list[int]]) -> None:
    """Each acknowledged record is there once, each writer's in order, and no other but the one under way."""
    assert data is not None
    assert data.endswith(b"\n")
    records = [json.loads(line) for line in data.splitlines()]
    found = Counter((record["writer"], record["number"]) for record in records)
    assert [pair for pair, count in found.items() if count > 1] == []
    for writer, numbers in enumerate(acknowledgements):
        mine = [record["number"] for record in records if record["writer"] == writer]
        assert mine in (numbers, [*numbers, len(numbers)])


def test_eight_writers_of_a_small_object(s3_server: S3Server, s3_prefix: str, tmp_path: Path) -> None:
    """Below 5 MiB, straight at the server: 8 processes, 50 records each, none lost or doubled."""
    uri = f"s3://{s3_server.bucket}/{s3_prefix}"
    with writers(tmp_path, uri, s3_server.options(), 20) as processes:
        done = [acknowledged(process) for process in processes]
    assert [len(numbers) for numbers in done] == [RECORDS] * WRITERS
    check(s3_server.get(f"{s3_prefix}/metrics.jsonl"), done)


@pytest.mark.parametrize("size", [20, 30_000], ids=["small", "large"])
def test_every_fifth_reply_is_lost(
    s3_server: S3Server, proxy: FaultProxy, s3_prefix: str, tmp_path: Path, size: int
) -> None:
    """Writes whose replies never come have happened: none is made twice, below 5 MiB and above."""
    uri = f"s3://{s3_server.bucket}/{s3_prefix}"
    if size > 20:
        s3_server.put(f"{s3_prefix}/metrics.jsonl", b'{"writer": -1, "number": 0}\n' * 200_000)
    for operation in ("PutObject", "CompleteMultipartUpload", "UploadPart", "UploadPartCopy"):
        proxy.fail("lost_reply", every=5, operation=operation)
    options = s3_server.options() | {"endpoint_url": proxy.endpoint}
    with writers(tmp_path, uri, options, size) as processes:
        done = [acknowledged(process) for process in processes]
    assert [len(numbers) for numbers in done] == [RECORDS] * WRITERS
    assert proxy.count("CompleteMultipartUpload" if size > 20 else "PutObject") > 10
    data = s3_server.get(f"{s3_prefix}/metrics.jsonl")
    assert data is not None
    check(data.replace(b'{"writer": -1, "number": 0}\n', b""), done)


@pytest.mark.parametrize("size", [20, 30_000], ids=["small", "large"])
def test_half_of_the_writers_are_killed(
    s3_server: S3Server, proxy: FaultProxy, s3_prefix: str, tmp_path: Path, size: int
) -> None:
    """After kill -9 at random times and a restart every acknowledged record is there once."""
    uri = f"s3://{s3_server.bucket}/{s3_prefix}"
    if size > 20:
        s3_server.put(f"{s3_prefix}/metrics.jsonl", b'{"writer": -1, "number": 0}\n' * 200_000)
    proxy.fail("lost_reply", every=5, operation={"PutObject", "CompleteMultipartUpload"})
    options = s3_server.options() | {"endpoint_url": proxy.endpoint}
    chance = random.Random(size)
    done: dict[int, list[int]] = {}
    with writers(tmp_path, uri, options, size) as processes:
        for writer in range(0, WRITERS, 2):
            done[writer] = killed(processes[writer], chance.randrange(1, RECORDS // 2))
        for writer in range(1, WRITERS, 2):
            done[writer] = acknowledged(processes[writer])
    proxy.heal()
    with storage_from_uri(uri, **options) as storage:
        storage.read("metrics.jsonl")
    data = s3_server.get(f"{s3_prefix}/metrics.jsonl")
    assert data is not None
    check(data.replace(b'{"writer": -1, "number": 0}\n', b""), [done[writer] for writer in range(WRITERS)])
    assert list((tmp_path / "spool").rglob("*.segment")) == []


# Appends to a large object and waits in the flush.
FLUSHER = """
import json, sys
from runstore import storage_from_uri

storage = storage_from_uri(sys.argv[1], **json.loads(sys.argv[2]))
storage.append_lines("metrics.jsonl", b'{"step": 1}\\n')
storage.flush()
"""


@pytest.mark.parametrize("fault", ["hang", "lost_reply"])
def test_an_upload_of_a_killed_process_is_ended(
    s3_server: S3Server, proxy: FaultProxy, s3_prefix: str, tmp_path: Path, fault: Fault
) -> None:
    """Killed before or after its upload was completed: the record is there once, no parts are left."""
    key, before = f"{s3_prefix}/metrics.jsonl", b'{"step": 0}\n' * 600_000
    s3_server.put(key, before)
    uri, options = f"s3://{s3_server.bucket}/{s3_prefix}", s3_server.options(endpoint=proxy.endpoint)
    rule = proxy.fail(fault, operation="CompleteMultipartUpload")
    with start(write_script(tmp_path, FLUSHER), uri, json.dumps(options)) as process:
        rule.wait()
        if fault == "lost_reply":
            proxy.wait("CompleteMultipartUpload")  # the server has acted
        process.kill()
        process.communicate(timeout=30)
    assert len(s3_server.uploads(key)) == (1 if fault == "hang" else 0)
    proxy.heal()
    with storage_from_uri(uri, **options) as storage:
        assert storage.read("metrics.jsonl") == before + b'{"step": 1}\n'
    assert s3_server.get(key) == before + b'{"step": 1}\n'
    assert s3_server.uploads(key) == []
