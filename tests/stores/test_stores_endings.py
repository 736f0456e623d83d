"""What is in a run after its process ended, in whatever way, and what another process sees of it."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from runstore import LocalStorage, RunRegistry, StorageListing, TrainingRunStore
from tests.scripts import run, write_script

WRITER = """
import os, signal, sys
from runstore import LocalStorage, TrainingRunStore

with LocalStorage(sys.argv[1]) as storage:
    store = TrainingRunStore(storage)
    for step in range(10):
        store.write_metrics({"loss": 1.0}, step=step)
    if sys.argv[2] == "raise inside":
        raise KeyError("the original")
    if sys.argv[2] == "sys.exit":
        sys.exit(3)
    if sys.argv[2] == "os._exit":
        os._exit(4)
    if sys.argv[2].startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        signal.pause()
raise KeyError("the original")
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise inside", 1),
        ("raise outside", 1),
        ("sys.exit", 3),
        ("os._exit", 4),
        ("SIGTERM", -signal.SIGTERM),
        ("SIGKILL", -signal.SIGKILL),
    ],
)
def test_b08_no_ending_loses_a_record(tmp_path: Path, ending: str, code: int) -> None:
    """Ten records are there however the process ends, with its own exit code and its own exception."""
    done = run(write_script(tmp_path, WRITER), tmp_path / "run", ending)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1:] == (["KeyError: 'the original'"] if code == 1 else [])
    store = TrainingRunStore(LocalStorage(tmp_path / "run", mkdir=False))
    assert [record["step"] for record in store.read_metrics()] == list(range(10))


def test_d01_what_another_process_adds_is_listed(tmp_path: Path) -> None:
    """A run and an iteration that another process made are there the next time one looks."""
    first = TrainingRunStore(tmp_path / "first")
    first.write_metrics({"loss": 1.0}, step=0)
    registry = RunRegistry([LocalStorage(tmp_path)])
    assert [info.run_id for info in registry.refresh()] == ["first"]
    assert first.list_iterations() == []
    program = (
        "import sys; from runstore import TrainingRunStore; "
        "TrainingRunStore(sys.argv[1] + '/first').write_rollouts(3, [{'group_idx': 0}]); "
        "TrainingRunStore(sys.argv[1] + '/second').write_config({})"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert [info.run_id for info in registry.refresh()] == ["first", "second"]
    assert [info.iteration for info in first.list_iterations()] == [3]


class Counting(LocalStorage):
    """Counts the operations, by name, and notes what is read."""

    runs_in_place = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()
        self.read_paths: list[str] = []

    async def ascan(self, prefix: str, known: StorageListing | None = None) -> StorageListing:
        self.calls["scan"] += 1
        return await super().ascan(prefix, known)

    async def aread(self, path: str) -> bytes:
        self.calls["read"] += 1
        self.read_paths.append(path)
        return await super().aread(path)

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        self.calls["read"] += 1
        self.read_paths.append(path)
        return await super().aread_range(path, offset, length)


@pytest.mark.anyio
async def test_b06_a_list_costs_few_operations_a_run(tmp_path: Path) -> None:
    """Listing reads no metrics and at most three files or folders a run; again, one scan for each."""
    for number in range(20):
        store = TrainingRunStore(LocalStorage(tmp_path), f"run-{number:02d}")
        await store.awrite_config({"num_epochs": 1})
        await store.awrite_metrics({"loss": 1.0}, step=0)
        await store.awrite_checkpoint({"name": "final", "final": True})
        await store.awrite_rollouts(7, [{"group_idx": 0}])
    storage = Counting(tmp_path)
    registry = RunRegistry([storage])
    assert {info.status for info in await registry.arefresh()} == {"completed"}
    assert storage.calls["scan"] == 21
    assert storage.calls["read"] <= 40
    assert not [path for path in storage.read_paths if "metrics" in path]
    storage.calls.clear()
    assert len(await registry.arefresh()) == 20
    assert storage.calls == Counter(scan=21)
