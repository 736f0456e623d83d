"""What the laws are tested with: a storage, its raw files, both colours, event loops."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from runstore.storage import Storage
from runstore.testing._colours import Colours

__all__ = ["TEN", "Bench"]

# Ten bytes, each another.
TEN = b"0123456789"

UVLOOP = pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")
LOOPS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop", marks=UVLOOP),
]


class Bench(ABC):
    """What a backend gives, and the fixtures made of it."""

    # Folders that a new process needs to import the storage's class from.
    import_paths: tuple[str, ...] = ()

    @abstractmethod
    def make_storage(self, folder: Path) -> Storage:
        """A storage that holds nothing; `folder` is an empty one of the test's own, to be used or not."""

    @abstractmethod
    def raw_write(self, path: str, data: bytes) -> None:
        """Make a file, and its parents, without the storage."""

    @abstractmethod
    def raw_read(self, path: str) -> bytes | None:
        """The content of a file without the storage, `None` when there is no file."""

    @pytest.fixture(params=LOOPS)
    def anyio_backend(self, request: pytest.FixtureRequest) -> Any:
        """The event loops that the laws are tested on."""
        return request.param

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """A storage that holds nothing."""
        folder = tmp_path / "storage"
        folder.mkdir()
        return self.make_storage(folder)

    @pytest.fixture(params=["async-async", "sync-sync", "async-sync", "sync-async"])
    def colours(self, request: pytest.FixtureRequest, storage: Storage) -> Colours:
        """Its operations; the parameter names how it is written and how it is read."""
        writes, reads = request.param.split("-")
        return Colours(storage, writes, reads)

    @pytest.fixture(params=["async", "sync"])
    def colour(self, request: pytest.FixtureRequest, storage: Storage) -> Colours:
        """The same where writing and reading are not mixed."""
        return Colours(storage, request.param, request.param)
