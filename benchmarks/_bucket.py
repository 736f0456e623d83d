"""A bucket to measure in: a real S3 server, and before it a proxy that delays and counts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

from tests.s3.server import PREFIX, S3Server, find_weed, shared_server

__all__ = ["ONE_WAY", "Bucket", "Proxy", "Traffic", "open_bucket"]

# The latency that rows speak of: seconds that a request, and its answer, is on its way.
ONE_WAY = 0.03
SECONDS_TO_END = 20.0
ROOT = Path(__file__).parents[1]


class Traffic(NamedTuple):
    """What passed the proxy."""

    places: list[str]
    """A request each: its key, or the prefix that it lists."""
    sent: int
    received: int


class Proxy:
    """The tests' fault proxy in a process of its own: in this one it would take the contenders' time.

    Attributes:
        endpoint: Its URL.
    """

    def __init__(self, server: str) -> None:
        """Start it before the server at this URL."""
        self._process = subprocess.Popen(
            [sys.executable, os.fspath(Path(__file__).with_name("_child_proxy.py")), server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
        )
        self.endpoint = str(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _order(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    @contextlib.contextmanager
    def delay(self, seconds: float = ONE_WAY) -> Iterator[None]:
        """Have each request and each answer take so long."""
        self._order(latency=seconds)
        try:
            yield
        finally:
            self._order(latency=0.0)

    def clear(self) -> None:
        """Count from here on."""
        self._order(clear=True)

    def traffic(self) -> Traffic:
        """What passed since the counting began."""
        return Traffic(*self._order(report=True))


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket on a server, reached through the proxy or around it."""

    server: S3Server
    proxy: Proxy

    @classmethod
    @contextlib.contextmanager
    def behind_proxy(cls, server: S3Server) -> Iterator[Bucket]:
        """A server's bucket, with a proxy of its own."""
        proxy = Proxy(server.endpoint)
        try:
            yield cls(server, proxy)
        finally:
            proxy.close()

    def new_prefix(self) -> str:
        """A prefix with nothing below it."""
        return f"{PREFIX}{uuid4().hex}"

    def storage(self, package: Any, prefix: str, *, direct: bool = False) -> Any:
        """A package's storage of a prefix, behind the proxy or not."""
        endpoint = self.server.endpoint if direct else self.proxy.endpoint
        return package.storage_from_uri(
            f"s3://{self.server.bucket}/{prefix}", **self.server.options(endpoint=endpoint)
        )

    def put(self, files: Mapping[str, bytes]) -> None:
        """Store objects, by their keys, around the packages and the proxy."""
        with ThreadPoolExecutor(16) as threads:
            for _ in threads.map(self.server.put, files, files.values()):
                pass


@contextlib.contextmanager
def open_bucket(folder: Path) -> Iterator[Bucket | None]:
    """A bucket on a server of our own, `None` where SeaweedFS (the program `weed`) is not installed.

    Nothing of the user's own AWS set-up reaches it meanwhile, and spools are below the folder.
    """
    weed = find_weed()
    if weed is None:
        yield None
        return
    place = folder / "seaweedfs"
    with _clean_environment(folder):
        try:
            with shared_server(place, weed) as server, Bucket.behind_proxy(server) as bucket:
                yield bucket
        finally:
            _wait_for_the_end(place)


@contextlib.contextmanager
def _clean_environment(folder: Path) -> Iterator[None]:
    empty = folder / "no-aws-configuration"
    empty.touch()
    kept = {name: value for name, value in os.environ.items() if not _is_of_a_client(name)}
    own = {
        "AWS_CONFIG_FILE": os.fspath(empty),
        "AWS_SHARED_CREDENTIALS_FILE": os.fspath(empty),
        "AWS_EC2_METADATA_DISABLED": "true",
        "RUNSTORE_SPOOL_DIR": os.fspath(folder / "spool"),
    }
    with patch.dict(os.environ, kept | own, clear=True):
        yield


def _is_of_a_client(name: str) -> bool:
    return name.upper().startswith(("AWS_", "FSSPEC_")) or name.upper().endswith("_PROXY")


def _wait_for_the_end(place: Path) -> None:
    """Wait until the server, which ends by itself, has removed its files."""
    give_up = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < give_up and not all((each / "ended").exists() for each in place.glob("weed-*")):
        time.sleep(0.02)
