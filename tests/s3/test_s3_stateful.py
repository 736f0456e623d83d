"""Any sequence of operations on a bucket of a real server gives what a dict would."""

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from runstore import S3Storage, Storage
from tests.s3.server import PREFIX, S3Server
from tests.storage.test_stateful import StorageMachine


class S3Machine(StorageMachine):
    """A new prefix for each sequence."""

    keeps_folders = False
    server: S3Server

    def make(self, folder: Path) -> Storage:
        self.prefix = f"{PREFIX}{uuid4().hex}"
        return S3Storage("s3", f"{self.server.bucket}/{self.prefix}", **self.server.options())

    def check_names(self, folder: str, names: list[str]) -> None:
        """SeaweedFS goes on listing a folder for minutes after its last object is gone, as S3 does not."""
        expected = self._children(folder)
        start = f"{folder}/" if folder else ""
        left = {path[len(start) :].partition("/")[0] for path in self.folders if path.startswith(start)}
        assert names == sorted({*expected, *(left & set(names))})

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.storage.flush()
            keys = self.server.keys(f"{self.prefix}/")
            found = {key.removeprefix(f"{self.prefix}/"): self.server.get(key) for key in keys}
            assert found == self.model
        super().teardown()


@pytest.mark.timeout(150)  # seven seconds on a machine that does nothing else
def test_any_sequence_of_operations(s3_server: S3Server) -> None:
    """Files, sizes, listings and ranges are those of a dict, awaited or called, and around the package."""

    class Machine(S3Machine):
        server = s3_server

    # Fewer than other storages get: each step costs a request for every file that there is.
    examples = max(settings().max_examples // 10, 5)
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=30))
