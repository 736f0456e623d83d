"""Where a run is: storages, URIs and paths, and the prefix below them."""

import os
from pathlib import Path, PurePosixPath

import pytest

from runstore import (
    IterationInfo,
    LocalStorage,
    RunStoreError,
    Storage,
    StorageStat,
    TrainingRunStore,
)
from tests.stores.helpers import Call, RunFolder


async def use_everything(store: TrainingRunStore, call: Call) -> None:
    """Every file of a run, written and read back."""
    await call(store.awrite_config, {"lr": 0.1})
    await call(store.awrite_metrics, {"loss": 0.5}, 1)
    await call(store.awrite_metrics, {"loss": 0.25}, 2)
    await call(store.awrite_timing_spans, 1, [{"name": "a"}])
    await call(store.awrite_checkpoint, {"name": "a"})
    await call(store.awrite_rollouts, 1, [{"group_idx": 0, "traj_idx": 0}])
    await call(store.awrite_logtree, 1, {"title": "t"})
    await call(store.awrite_code_diff, "diff")
    assert await call(store.atruncate_metrics, 2) == 1
    assert await call(store.aread_config) == {"lr": 0.1}
    assert await call(store.aread_metrics) == [{"step": 1, "loss": 0.5}]
    assert await call(store.aread_new_metrics) == []
    assert await call(store.aread_metrics_by_step) == [{"step": 1, "loss": 0.5}]
    assert list(await call(store.asnapshot_metrics)) == [{"step": 1, "loss": 0.5}]
    assert await call(store.aread_timing) == [{"step": 1, "spans": [{"name": "a"}]}]
    assert await call(store.aread_checkpoints) == [{"name": "a"}]
    assert [record.name for record in await call(store.aread_checkpoint_records)] == ["a"]
    assert await call(store.aread_rollouts, 1) == [{"group_idx": 0, "traj_idx": 0}]
    assert await call(store.aread_single_rollout, 1, 0, 0) == {"group_idx": 0, "traj_idx": 0}
    assert await call(store.aread_logtree, 1) == {"title": "t"}
    assert await call(store.alist_logtrees, 1) == ["train"]
    assert await call(store.alist_iterations) == [
        IterationInfo(1, has_train_rollouts=True, has_train_logtree=True)
    ]


EVERY_FILE = {
    "config.json",
    "metrics.jsonl",
    "metrics.jsonl.pre_resume_000002",
    "timing_spans.jsonl",
    "checkpoints.jsonl",
    "iteration_000001/train_rollout_summaries.jsonl",
    "iteration_000001/train_logtree.json",
    "code.diff",
}


@pytest.mark.parametrize("kind", ["storage", "string", "path", "pathlike", "uri"])
@pytest.mark.anyio
async def test_what_names_a_storage(tmp_path: Path, call: Call, kind: str) -> None:
    """A storage, a plain path, a `Path`, any PathLike and a URI are accepted, and mean the same folder."""
    folder = tmp_path / "my run"
    places: dict[str, Storage | str | os.PathLike[str]] = {
        "storage": LocalStorage(folder),
        "string": str(folder),
        "path": folder,
        "pathlike": PurePosixPath(folder),
        "uri": folder.as_uri(),
    }
    store = TrainingRunStore(places[kind])
    await use_everything(store, call)
    assert set(RunFolder(folder).files()) == EVERY_FILE
    assert store.url() == folder.as_uri()
    assert store.url("metrics.jsonl") == folder.as_uri() + "/metrics.jsonl"
    assert "my%20run" in store.url()


def test_a_storage_is_kept_as_it_is(tmp_path: Path) -> None:
    """A storage that was passed is the store's `storage`, and the prefix its `prefix`."""
    storage = LocalStorage(tmp_path)
    store = TrainingRunStore(storage, "runs/a")
    assert store.storage is storage
    assert store.prefix == "runs/a"
    assert repr(store) == f"TrainingRunStore({storage!r}, 'runs/a')"


@pytest.mark.parametrize("uri", ["", "s3:/bucket/run", "nope://host/run", "file://relative/run"])
def test_a_uri_that_cannot_be_right(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error at once, and no folder of such a name comes into being."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"URI|scheme") as caught:
        TrainingRunStore(uri)
    assert isinstance(caught.value, RunStoreError)
    assert list(tmp_path.iterdir()) == []


def test_opening_changes_nothing(tmp_path: Path) -> None:
    """Opening a run by its path creates nothing, reads nothing and needs no folder."""
    TrainingRunStore(tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("prefix", "folder"),
    [
        ("", ""),
        ("run", "run"),
        ("a/b/c", "a/b/c"),
        ("/a/b/", "a/b"),
        ("//a//b", "a/b"),
        ("./a/./b", "a/b"),
        ("a/../b", "b"),
        ("ünï code/%20?#", "ünï code/%20?#"),
    ],
)
@pytest.mark.anyio
async def test_a_prefix_is_a_folder_below_the_root(
    tmp_path: Path, call: Call, prefix: str, folder: str
) -> None:
    """Slashes around a prefix are stripped, empty parts dropped, `.` and `..` inside it resolved."""
    store = TrainingRunStore(tmp_path / "root", prefix)
    await use_everything(store, call)
    root = RunFolder(tmp_path / "root")
    assert set(root.files()) == {f"{folder}/{name}".lstrip("/") for name in EVERY_FILE}
    assert store.url("config.json") == (tmp_path / "root" / folder / "config.json").as_uri()


@pytest.mark.parametrize("prefix", ["..", "../other", "a/../../other", "/../other", "a\0b"])
@pytest.mark.anyio
async def test_a_prefix_that_leaves_the_root(tmp_path: Path, call: Call, prefix: str) -> None:
    """It is a `ValueError` that says "escapes", from every operation, before any I/O."""
    store = TrainingRunStore(tmp_path / "root", prefix)
    with pytest.raises(ValueError, match="escapes"):
        store.url()
    for operation in (
        lambda: call(store.aread_config),
        lambda: call(store.awrite_config, {}),
        lambda: call(store.aread_metrics),
        lambda: call(store.aread_new_metrics),
        lambda: call(store.aread_metrics_by_step),
        lambda: call(store.asnapshot_metrics),
        lambda: call(store.awrite_metrics, {"loss": 1}),
        lambda: call(store.atruncate_metrics, 1),
        lambda: call(store.aread_timing),
        lambda: call(store.awrite_timing_spans, 1, [{}]),
        lambda: call(store.aread_checkpoints),
        lambda: call(store.aread_checkpoint_records),
        lambda: call(store.awrite_checkpoint, {"name": "a"}),
        lambda: call(store.aread_rollouts, 1),
        lambda: call(store.aread_single_rollout, 1, 0, 0),
        lambda: call(store.awrite_rollouts, 1, []),
        lambda: call(store.aread_logtree, 1),
        lambda: call(store.alist_logtrees, 1),
        lambda: call(store.awrite_logtree, 1, {}),
        lambda: call(store.alist_iterations),
        lambda: call(store.awrite_code_diff, ""),
    ):
        with pytest.raises(ValueError, match="escapes"):
            await operation()
    assert not RunFolder(tmp_path / "root").exists()


@pytest.mark.anyio
async def test_runs_with_different_prefixes_are_apart(tmp_path: Path, call: Call) -> None:
    """Two runs of one storage share nothing, and the root is a run of its own."""
    storage = LocalStorage(tmp_path)
    stores = [TrainingRunStore(storage, prefix) for prefix in ("", "a", "a/b", "ab")]
    for number, store in enumerate(stores):
        await call(store.awrite_config, {"number": number})
        await call(store.awrite_metrics, {"number": number}, 1)
        await call(store.awrite_rollouts, number, [])
    for number, store in enumerate(stores):
        assert await call(store.aread_config) == {"number": number}
        assert await call(store.aread_metrics) == [{"step": 1, "number": number}]
        assert [info.iteration for info in await call(store.alist_iterations)] == [number]


class DictStorage:
    """A storage of another make: sync methods only, and nothing of this package's."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def url(self, path: str = "") -> str:
        return f"dict:///{path}"

    def read(self, path: str) -> bytes:
        if path not in self.data:
            raise FileNotFoundError(path)
        return self.data[path]

    def write(self, path: str, data: bytes) -> None:
        self.data[path] = data

    def append(self, path: str, data: bytes) -> None:
        self.data[path] = self.data.get(path, b"") + data

    def exists(self, path: str) -> bool:
        return path in self.data

    def stat(self, path: str) -> StorageStat | None:
        return StorageStat(len(self.data[path]), 0.0) if path in self.data else None

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = self.read(path)[offset:]
        return data if length is None else data[:length]

    def list_dir(self, prefix: str) -> list[str]:
        start = f"{prefix}/" if prefix else ""
        return sorted({path[len(start) :].split("/")[0] for path in self.data if path.startswith(start)})

    def remove(self, path: str) -> None:
        self.data.pop(path, None)

    def remove_dir(self, path: str) -> None:
        pass


@pytest.mark.anyio
async def test_an_object_with_sync_methods_only(call: Call) -> None:
    """An object that has only the sync methods of a storage keeps a run like any other."""
    storage = DictStorage()
    store = TrainingRunStore(storage, "runs/a")
    await use_everything(store, call)
    assert set(storage.data) == {f"runs/a/{name}" for name in EVERY_FILE}
    assert store.url("config.json") == "dict:///runs/a/config.json"


@pytest.mark.anyio
async def test_rollouts_of_a_storage_without_times(call: Call) -> None:
    """Where every file has the time 0, a rewrite of equal size by another store is seen all the same."""
    storage = DictStorage()
    one, other = TrainingRunStore(storage), TrainingRunStore(storage)
    for reward in range(3):
        await call(one.awrite_rollouts, 1, [{"reward": reward}])
        read = await call(other.aread_rollouts, 1)
        assert read == [{"reward": reward}]
        assert await call(other.aread_rollouts, 1) is read


def test_what_is_no_storage() -> None:
    """An object that lacks a method of a storage is a `TypeError` that names what is missing."""
    with pytest.raises(TypeError, match="object is no storage"):
        TrainingRunStore(object())  # type: ignore[arg-type]
