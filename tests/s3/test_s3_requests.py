"""What each operation costs in requests and bytes, counted at the proxy."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from runstore import FsspecStorage, IncrementalReader, TrainingRunStore, storage_from_uri
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server

RECORD = b'{"step": 1, "loss": 0.5}\n'
MIB = 1024 * 1024


@pytest.fixture
def options(s3_server: S3Server, proxy: FaultProxy) -> dict[str, Any]:
    return s3_server.options(endpoint=proxy.endpoint)


@pytest.fixture
def storage(options: dict[str, Any], s3_uri: str) -> FsspecStorage:
    storage = storage_from_uri(s3_uri, flush_interval=3600, **options)
    assert isinstance(storage, FsspecStorage)
    return storage


def put_iterations(server: S3Server, prefix: str, count: int) -> None:
    """The four files of so many iterations."""
    names = ("train_rollout_summaries.jsonl", "train_logtree.json", "eval_gsm8k_rollout_summaries.jsonl", "x")
    keys = [f"{prefix}/iteration_{number:06d}/{name}" for number in range(count) for name in names]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda key: server.put(key, b"{}\n"), keys))


def operations(proxy: FaultProxy) -> dict[str, int]:
    return dict(Counter(request.operation for request in proxy.requests))


def test_a_poll_is_one_request(
    storage: FsspecStorage, s3_server: S3Server, s3_prefix: str, proxy: FaultProxy
) -> None:
    """A poll costs one GET whether it finds records or none, and about what is new in bytes."""
    key = f"{s3_prefix}/metrics.jsonl"
    s3_server.put(key, RECORD * 100_000)
    reader = IncrementalReader(storage, "metrics.jsonl")
    assert len(reader.read()) == 100_000
    proxy.clear()
    assert reader.read() == []
    assert operations(proxy) == {"GetObject": 1}
    assert proxy.bytes_out < 3_000
    s3_server.put(key, RECORD * 100_010)
    proxy.clear()
    assert len(reader.read()) == 10
    assert operations(proxy) == {"GetObject": 1}
    assert proxy.bytes_out < 3_000


def test_a_poll_of_a_missing_file_is_one_request(storage: FsspecStorage, proxy: FaultProxy) -> None:
    """A run that has not begun costs one GET a poll."""
    reader = IncrementalReader(storage, "metrics.jsonl")
    reader.read()
    proxy.clear()
    assert reader.read() == []
    assert operations(proxy) == {"GetObject": 1}


def test_a_small_flush_is_one_put(storage: FsspecStorage, proxy: FaultProxy) -> None:
    """100 appends and a flush below 5 MiB: one PUT once the object is known; an idle flush: nothing."""
    storage.append("metrics.jsonl", RECORD)
    storage.flush()
    proxy.clear()
    for _ in range(100):
        storage.append("metrics.jsonl", RECORD)
    storage.flush()
    assert operations(proxy) == {"PutObject": 1}
    proxy.clear()
    for _ in range(100):
        storage.flush()
    assert proxy.requests == []
    assert storage.read("metrics.jsonl") == RECORD * 101


def test_the_first_flush_of_a_new_file(storage: FsspecStorage, proxy: FaultProxy) -> None:
    """A new file costs a look and the PUT; the first of an endpoint also whether it heeds conditions."""
    storage.append("a.jsonl", RECORD)
    storage.flush()
    proxy.clear()
    storage.append("b.jsonl", RECORD)
    storage.flush()
    assert operations(proxy) == {"HeadObject": 1, "PutObject": 1}


def test_a_flush_of_a_large_object_sends_what_is_new(
    storage: FsspecStorage, s3_server: S3Server, s3_prefix: str, proxy: FaultProxy
) -> None:
    """On 20 MiB a flush sends less than 1 % of it and downloads nothing, also the first one."""
    s3_server.put(f"{s3_prefix}/metrics.jsonl", RECORD * (20 * MIB // len(RECORD)))
    for first in (True, False):
        proxy.clear()
        storage.append("metrics.jsonl", RECORD * 4000)
        storage.flush()
        assert proxy.bytes_in < 20 * MIB // 100
        assert proxy.bytes_out < 10_000
        parts = {
            "CreateMultipartUpload": 1,
            "UploadPartCopy": 1,
            "UploadPart": 1,
            "CompleteMultipartUpload": 1,
        }
        found = operations(proxy)
        if first:
            found = {name: count for name, count in found.items() if name in parts}
        assert found == parts
    assert s3_server.get(f"{s3_prefix}/metrics.jsonl") == RECORD * (20 * MIB // len(RECORD) + 8000)


def test_d18_a_thousand_flushes(
    storage: FsspecStorage, s3_server: S3Server, s3_prefix: str, proxy: FaultProxy
) -> None:
    """1,000 appends with a flush each: a flush sends at most 5 MiB and what is new, and downloads nothing."""
    storage.append("metrics.jsonl", RECORD)
    storage.flush()
    proxy.clear()
    for _ in range(1000):
        storage.append("metrics.jsonl", RECORD * 20)
        storage.flush()
    assert operations(proxy) == {"PutObject": 1000}
    assert max(request.bytes_in for request in proxy.requests) < 5 * MIB
    assert proxy.bytes_out < 1000 * 1_000
    assert s3_server.get(f"{s3_prefix}/metrics.jsonl") == RECORD * 20_001


def test_d15_2500_iterations_are_listed_in_ten_requests(
    options: dict[str, Any], s3_server: S3Server, s3_prefix: str, s3_uri: str, proxy: FaultProxy
) -> None:
    """10,000 objects of 2,500 iterations are found in about 10 requests."""
    put_iterations(s3_server, s3_prefix, 2_500)
    run = TrainingRunStore(storage_from_uri(s3_uri, **options))
    proxy.clear()
    found = run.list_iterations()
    assert len(found) == 2_500
    assert all(entry.has_train_rollouts and entry.has_train_logtree for entry in found)
    assert found[7].eval_labels == ["gsm8k"]
    assert len(proxy.requests) <= 11


def test_500_iterations_at_30_ms(
    options: dict[str, Any], s3_server: S3Server, s3_prefix: str, s3_uri: str, proxy: FaultProxy
) -> None:
    """With 30 ms of latency each way 500 iterations are listed in less than 2 s."""
    put_iterations(s3_server, s3_prefix, 500)
    run = TrainingRunStore(storage_from_uri(s3_uri, **options))
    run.read_config()
    proxy.latency = 0.03
    proxy.clear()
    begin = time.monotonic()
    assert len(run.list_iterations()) == 500
    assert time.monotonic() - begin < 2
    assert len(proxy.requests) <= 3
