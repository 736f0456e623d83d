"""The benchmarks of runs in a bucket, each run once with very little data."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench_package import load_benchmarks
from tests.s3.server import S3Server

load_benchmarks()

# Importable only now.
from benchmarks._all import IN_BUCKET  # noqa: E402
from benchmarks._bucket import Bucket, open_bucket  # noqa: E402
from benchmarks._measure import SMALL, Bench, load_peer  # noqa: E402
from benchmarks._report import render  # noqa: E402
from benchmarks._row import Row, Unit  # noqa: E402


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    with Bucket.behind_proxy(s3_server) as bucket:
        yield bucket


@pytest.mark.parametrize("name", IN_BUCKET)
def test_each_benchmark_runs_and_can_be_shown(name: str, bucket: Bucket, tmp_path: Path) -> None:
    """Each benchmark runs at the smallest scale, and what it counts rather than times meets its goal."""
    bench = Bench(tmp_path, SMALL, load_peer(), bucket)
    results = IN_BUCKET[name](bench)
    text = render(results)
    assert results
    for result in results:
        assert isinstance(result, Row)
        assert result.what in text
        assert "runstore" in result.samples
        assert bench.peer is not None or "peer" not in result.samples
        if result.unit is Unit.COUNT:
            assert not result.missed(), result.summary()


def test_the_proxy_counts_and_delays(bucket: Bucket) -> None:
    """What a row says of requests, bytes and latency is what passed the proxy, and nothing around it."""
    prefix = bucket.new_prefix()
    through, around = (bucket.server.client(endpoint=at) for at in (bucket.proxy.endpoint, None))
    where = {"Bucket": bucket.server.bucket, "Key": f"{prefix}/a"}
    bucket.put({where["Key"]: b"x" * 10_000})
    bucket.proxy.clear()
    around.get_object(**where)
    assert bucket.proxy.traffic() == ([], 0, 0)
    through.get_object(**where)["Body"].read()
    through.put_object(**where, Body=b"y" * 5_000)
    through.list_objects_v2(Bucket=where["Bucket"], Prefix=f"{prefix}/")
    traffic = bucket.proxy.traffic()
    assert traffic.places == [where["Key"], where["Key"], f"{prefix}/"]
    assert 5_000 < traffic.sent < 8_000
    assert 10_000 < traffic.received < 13_000
    with bucket.proxy.delay(0.05):
        start = time.perf_counter()
        through.head_object(**where)
        assert time.perf_counter() - start >= 0.1


def test_a_bucket_of_its_own_comes_and_goes(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has a server for itself, without the user's AWS set-up, and leaves neither behind nor changed."""
    monkeypatch.setenv("AWS_PROFILE", "of-the-user")
    monkeypatch.setenv("https_proxy", "http://of-the-user")
    before = dict(os.environ)
    with open_bucket(tmp_path) as bucket:
        assert bucket is not None
        assert bucket.server.endpoint != s3_server.endpoint
        assert not {"AWS_PROFILE", "https_proxy"} & set(os.environ)
        assert os.environ["RUNSTORE_SPOOL_DIR"].startswith(str(tmp_path))
        bucket.put({"a": b"1"})
        assert bucket.server.get("a") == b"1"
    assert dict(os.environ) == before
    assert not list(tmp_path.glob("seaweedfs/weed-*/data"))


def test_without_a_server_there_is_no_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SeaweedFS is not installed, what needs a bucket is told so before anything is set up."""
    monkeypatch.setattr("benchmarks._bucket.find_weed", lambda: None)
    with open_bucket(tmp_path) as bucket:
        assert bucket is None
    assert not list(tmp_path.iterdir())
