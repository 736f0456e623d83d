"""Every storage of this package, and those that users bring, under the same laws."""

from pathlib import Path

import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from runstore import FsspecStorage, LocalStorage, Storage, storage_from_uri
from runstore.storage import as_storage
from runstore.testing import StorageConformance
from tests.filesystems import AsyncObjects, Objects, WholeFilesOnDisk
from tests.storages import MemoryStorage, SyncFolder

REPOSITORY = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that wait do so in a folder of the test's own."""
    monkeypatch.setenv("RUNSTORE_SPOOL_DIR", str(tmp_path / "spool"))


class InFolder(StorageConformance):
    """Raw access for storages whose files are those of a folder."""

    folder: Path

    def raw_write(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def raw_read(self, path: str) -> bytes | None:
        target = self.folder / path
        return target.read_bytes() if target.is_file() else None


class TestLocalStorage(InFolder):
    """Local files."""

    def make_storage(self, folder: Path) -> Storage:
        self.folder = folder
        return LocalStorage(folder)


class TestLocalStorageMadeLate(InFolder):
    """Local files in a folder that the first write makes."""

    def make_storage(self, folder: Path) -> Storage:
        self.folder = folder / "made by the first write"
        return LocalStorage(self.folder, mkdir=False)


class TestSyncOnlyObject(InFolder):
    """An object that has only sync methods."""

    import_paths = (REPOSITORY,)

    def make_storage(self, folder: Path) -> Storage:
        self.folder = folder / "root"
        self.folder.mkdir()
        return as_storage(SyncFolder(self.folder))


class TestAsyncOnlyStorage(StorageConformance):
    """A backend with the abstract methods only, whose operations suspend."""

    import_paths = (REPOSITORY,)

    def make_storage(self, folder: Path) -> Storage:
        self.storage_in_memory = MemoryStorage(str(folder))
        return self.storage_in_memory

    def raw_write(self, path: str, data: bytes) -> None:
        self.storage_in_memory.files[path] = (data, 1.0)

    def raw_read(self, path: str) -> bytes | None:
        found = self.storage_in_memory.files.get(path)
        return None if found is None else found[0]

    @pytest.mark.xfail(strict=True, reason="its files are in the memory of one process")
    def test_a_pickled_copy_works_in_another_process(self, storage: Storage) -> None:
        super().test_a_pickled_copy_works_in_another_process(storage)


class TestFsspecFile(InFolder):
    """Files of `file://`, which are appended to at once."""

    def make_storage(self, folder: Path) -> Storage:
        self.folder = folder
        return FsspecStorage("file", str(folder))


class TestFsspecWholeFiles(InFolder):
    """Files in real folders that can only be written whole: appends are spooled."""

    import_paths = (REPOSITORY,)

    def make_storage(self, folder: Path) -> Storage:
        self.folder = folder
        return FsspecStorage(WholeFilesOnDisk(), str(folder))


class InMemory(StorageConformance):
    """Raw access to filesystems whose files are in the memory of one process."""

    import_paths = (REPOSITORY,)
    kind: type[MemoryFileSystem] = MemoryFileSystem
    root: str

    def key(self, path: str) -> str:
        return f"{self.root}/{path}"

    def raw_write(self, path: str, data: bytes) -> None:
        self.kind().pipe_file(self.key(path), data)

    def raw_read(self, path: str) -> bytes | None:
        try:
            data: bytes = self.kind().cat_file(self.key(path))
        except FileNotFoundError:
            return None
        return data

    @pytest.mark.xfail(strict=True, reason="its files are in the memory of one process")
    def test_a_pickled_copy_works_in_another_process(self, storage: Storage) -> None:
        super().test_a_pickled_copy_works_in_another_process(storage)


class TestFsspecMemory(InMemory):
    """Files of `memory://`, which are appended to at once."""

    def make_storage(self, folder: Path) -> Storage:
        self.root = f"/{folder}".replace("//", "/")
        return storage_from_uri(f"memory://{folder}")


class TestFsspecInFolderOfAnother(InMemory):
    """A filesystem handed over that is a folder of another one."""

    def make_storage(self, folder: Path) -> Storage:
        self.root = f"{folder}/a"
        return FsspecStorage(DirFileSystem(str(folder), MemoryFileSystem()), "a")


class TestFsspecObjects(InMemory):
    """An object store without appends, used in threads: they are spooled, and files rewritten."""

    kind = Objects

    def make_storage(self, folder: Path) -> Storage:
        self.root = str(folder)
        return FsspecStorage("objects", str(folder))


class TestFsspecAsyncWrapped(InMemory):
    """The same, made asynchronous by fsspec."""

    kind = Objects

    def make_storage(self, folder: Path) -> Storage:
        self.root = str(folder)
        return FsspecStorage(AsyncFileSystemWrapper(Objects()), str(folder))


class TestFsspecAsync(InMemory):
    """An asynchronous object store without appends, whose session belongs to one event loop."""

    def make_storage(self, folder: Path) -> Storage:
        self.root = str(folder)
        return FsspecStorage("asyncobjects", str(folder), latency=0.0005)

    def raw_write(self, path: str, data: bytes) -> None:
        AsyncObjects.objects[self.key(path)] = (data, 1.0)

    def raw_read(self, path: str) -> bytes | None:
        found = AsyncObjects.objects.get(self.key(path))
        return None if found is None else found[0]
