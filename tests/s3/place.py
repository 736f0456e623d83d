"""One test's place in the bucket, seen through the package and around it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runstore import S3Storage, TrainingRunStore, storage_from_uri
from runstore.remote._appended import appended_files
from tests.s3.server import S3Server

__all__ = ["METRICS", "Place", "forget_pending", "until"]

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix of the bucket, reached at an endpoint: the server's or a proxy's."""

    server: S3Server
    prefix: str
    endpoint: str
    spool: Path

    @property
    def uri(self) -> str:
        """What names it to the package."""
        return f"s3://{self.server.bucket}/{self.prefix}"

    def options(self, identity: str = "admin") -> dict[str, Any]:
        """Give what the package needs to get there."""
        return self.server.options(identity, endpoint=self.endpoint)

    def storage(self, identity: str = "admin", **more: Any) -> S3Storage:
        """Give a storage that flushes only when told to, unless `more` says otherwise."""
        storage = storage_from_uri(self.uri, **{"flush_interval": 3600, **self.options(identity), **more})
        assert isinstance(storage, S3Storage)
        return storage

    def run(self, identity: str = "admin", **more: Any) -> TrainingRunStore:
        """Give the run that it is."""
        return TrainingRunStore(self.storage(identity, **more))

    def key(self, name: str = METRICS) -> str:
        """Give the key of a file."""
        return f"{self.prefix}/{name}"

    def data(self, name: str = METRICS) -> bytes | None:
        """Give a file's bytes, read around the package and the proxy; None if there is none."""
        return self.server.get(self.key(name))

    def put(self, data: bytes, name: str = METRICS) -> None:
        """Store a file, around the package and the proxy."""
        self.server.put(self.key(name), data)

    def records(self, name: str = METRICS) -> list[dict[str, Any]]:
        """Give the records of a file in the bucket."""
        return [json.loads(line) for line in (self.data(name) or b"").splitlines()]

    def steps(self, name: str = METRICS) -> list[int]:
        """Give the steps of the records of a file in the bucket."""
        return [record["step"] for record in self.records(name)]

    def spooled(self) -> list[Path]:
        """Give the files of appends that wait on the disk."""
        return sorted(self.spool.rglob("*.segment"))


def forget_pending() -> None:
    """Let go of what waits to be delivered, as the end of a process does: the files stay, unlocked.

    Only where nothing is delivered in the background meanwhile, as with the storages of a `Place`.
    """
    appended_files.after_fork()


def until(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
    """Wait for what gives no event; `what` says what is wrong if it does not come."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.01)
