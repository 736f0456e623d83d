"""Every storage of this package, and those that users bring, under the same laws."""

from pathlib import Path

import pytest

from runstore import LocalStorage, Storage
from runstore.storage import as_storage
from runstore.testing import StorageConformance
from tests.storages import MemoryStorage, SyncFolder

REPOSITORY = str(Path(__file__).parents[2])


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
