"""A run written and read back, in both colours."""

from pathlib import Path

import pytest

from runstore import TrainingRunStore


@pytest.mark.anyio
async def test_what_is_awaited_is_read_by_the_sync_twin(tmp_path: Path) -> None:
    """A record awaited into the store is there for a sync reader at once, inside the loop too."""
    store = TrainingRunStore(tmp_path / "run")
    await store.awrite_metrics({"loss": 0.5}, step=1)
    assert store.read_metrics() == [{"step": 1, "loss": 0.5}]
