"""What the tests of the run store share."""

from pathlib import Path

import pytest

from runstore import TrainingRunStore
from tests.stores.helpers import Call, RunFolder


@pytest.fixture(params=["async", "sync"])
def call(request: pytest.FixtureRequest) -> Call:
    """Calls a method in either colour."""
    return Call(request.param)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """The folder of a run; it comes into being with the first write."""
    return RunFolder(tmp_path / "run")


@pytest.fixture
def store(run: RunFolder) -> TrainingRunStore:
    """A run without a file."""
    return TrainingRunStore(run)
