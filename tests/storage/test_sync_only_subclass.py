"""Storage classes written for sync methods only: subclasses of the contract, and strangers to it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from runstore import AsyncStorage, LocalStorage, Storage, StorageStat, TrainingRunStore


class OnlySync:
    """The sync methods of a storage, over a folder, with something of its own beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.flushed = 0

    def url(self, path: str = "") -> str:
        return f"only-sync://{self.root}/{path}"

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def append(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / path).open("ab") as file:
            file.write(data)

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def stat(self, path: str) -> StorageStat | None:
        if not self.exists(path):
            return None
        status = (self.root / path).stat()
        return StorageStat(status.st_size, status.st_mtime)

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = self.read(path)[offset:]
        return data if length is None else data[:length]

    def list_dir(self, prefix: str) -> list[str]:
        folder = self.root / prefix
        return sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        (self.root / path).rmdir()

    def flush(self) -> None:
        self.flushed += 1


class SyncSubclass(OnlySync, Storage):
    """The same as a subclass of the contract."""


class WithoutRange(Storage):
    """A subclass that forgets a method."""

    read = OnlySync.read
    write = OnlySync.write


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [OnlySync, SyncSubclass])
async def test_sync_methods_are_enough_for_a_run(tmp_path: Path, kind: type[OnlySync]) -> None:
    """A store over such an object works in both colours, and what is written is read back."""
    storage = kind(tmp_path)
    store = TrainingRunStore(storage, "run")
    await store.awrite_metrics({"loss": 0.5}, step=1)
    store.write_metrics({"loss": 0.25}, step=2)
    await store.awrite_checkpoint({"name": "final"})
    assert await store.aread_metrics() == store.read_metrics()
    assert [record["step"] for record in store.read_metrics()] == [1, 2]
    assert storage.flushed >= 1
    assert await store.storage.alist_dir("run") == ["checkpoints.jsonl", "metrics.jsonl"]


@pytest.mark.anyio
async def test_a_subclass_gets_its_async_methods(tmp_path: Path) -> None:
    """Each async method of a class that defines the sync ones does what that one does."""
    storage = SyncSubclass(tmp_path)  # type: ignore[abstract]  # it gets them when it is defined
    await storage.awrite("a/b", b"12345")
    await storage.aappend("a/b", b"67")
    assert await storage.aread("a/b") == storage.read("a/b") == b"1234567"
    assert await storage.aread_range("a/b", 5) == b"67"
    assert await storage.astat("a/b") == storage.stat("a/b")
    await storage.aremove("a/b")
    assert not await storage.aexists("a/b")
    with pytest.raises(FileNotFoundError):
        await storage.aread("a/b")
    await storage.aclose()
    assert storage.flushed == 1


def test_a_subclass_that_lacks_a_method_cannot_be_made() -> None:
    """What a class forgot is said when it is instantiated, not when it is first needed."""
    with pytest.raises(TypeError, match="aread_range"):
        WithoutRange()  # type: ignore[abstract]  # that is the point


def test_isinstance_goes_by_the_methods(tmp_path: Path) -> None:
    """As with the model's protocols: having the methods is what counts, for each half of its own."""
    assert isinstance(LocalStorage(tmp_path), Storage)
    assert isinstance(LocalStorage(tmp_path), AsyncStorage)
    assert isinstance(SyncSubclass(tmp_path), AsyncStorage)  # type: ignore[abstract]
    assert isinstance(OnlySync(tmp_path), Storage)
    assert not isinstance(OnlySync(tmp_path), AsyncStorage)
    assert not isinstance(object(), Storage)


def test_what_an_object_has_beside_the_methods_is_reached_through_the_store(tmp_path: Path) -> None:
    """`store.storage` shows the attributes of the object that was passed, before and after pickling."""
    store = TrainingRunStore(OnlySync(tmp_path))
    assert store.storage.root == tmp_path  # type: ignore[attr-defined]  # of the wrapped object
    copy = pickle.loads(pickle.dumps(store))
    assert copy.storage.root == tmp_path
    with pytest.raises(AttributeError, match="absent"):
        _ = store.storage.absent  # type: ignore[attr-defined]
