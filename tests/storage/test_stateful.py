"""Any sequence of operations on a storage gives what a dict would."""

import asyncio
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runstore import FsspecStorage, LocalStorage, NotFoundError, Storage, StorageIOError, StorageListing
from runstore.storage import as_storage
from tests import filesystems
from tests.storages import MemoryStorage, SyncFolder

# Few names, so that the same file is met often; none is both a file and a folder.
FOLDERS = ["", "a", "a/b", "ü %#", ".hidden"]
NAMES = ["f", "g.jsonl", " x", "日本"]
PATHS = st.builds(
    lambda folder, name: f"{folder}/{name}".lstrip("/"), st.sampled_from(FOLDERS), st.sampled_from(NAMES)
)
DATA = st.binary(max_size=40) | st.sampled_from([b"", b"\n", b"1\n", b'{"a": 1}\n', b"torn", b"x" * 10_000])
LINES = st.lists(st.sampled_from([b"1\n", b"\n", b'{"a": 1}\n']), min_size=1, max_size=3).map(b"".join)
COLOURS = st.booleans()


class StorageMachine(RuleBasedStateMachine):
    """A storage next to a dict of its files; each operation is awaited or called as its sync twin."""

    storage: Storage
    model: dict[str, bytes]
    keeps_folders = True
    spools = False  # so that an append finds out later that a folder is in the way

    def make(self, folder: Path) -> Storage:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.before = os.environ.get("RUNSTORE_SPOOL_DIR")
        os.environ["RUNSTORE_SPOOL_DIR"] = str(self.folder / "spool")
        self.storage = self.make(self.folder)
        self.model = {}
        self.listings: dict[str, StorageListing] = {}
        self.folders: set[str] = set()
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()
            self.storage.close()
            shutil.rmtree(self.folder)
            os.environ.pop("RUNSTORE_SPOOL_DIR")
            if self.before is not None:
                os.environ["RUNSTORE_SPOOL_DIR"] = self.before

    def call(self, awaited: bool, name: str, *args: Any) -> Any:
        if awaited:
            return self.runner.run(getattr(self.storage, f"a{name}")(*args))
        return getattr(self.storage, name)(*args)

    def _made(self, path: str) -> None:
        while "/" in path:
            path = path.rpartition("/")[0]
            self.folders.add(path)

    def check_names(self, folder: str, names: list[str]) -> None:
        assert names == self._children(folder)

    def _children(self, folder: str) -> list[str]:
        start = f"{folder}/" if folder else ""
        there = [*self.model, *(self.folders if self.keeps_folders else ())]
        return sorted({path[len(start) :].split("/")[0] for path in there if path.startswith(start)})

    @rule(path=PATHS, data=DATA, awaited=COLOURS)
    def write(self, path: str, data: bytes, awaited: bool) -> None:
        self.call(awaited, "write", path, data)
        self.model[path] = data
        self._made(path)

    @rule(path=PATHS, data=DATA, awaited=COLOURS)
    def append(self, path: str, data: bytes, awaited: bool) -> None:
        self.call(awaited, "append", path, data)
        self.model[path] = self.model.get(path, b"") + data
        self._made(path)

    @rule(path=PATHS, lines=LINES, awaited=COLOURS)
    def append_lines(self, path: str, lines: bytes, awaited: bool) -> None:
        self.call(awaited, "append_lines", path, lines)
        before = self.model.get(path, b"")
        self.model[path] = before + (b"\n" if before and not before.endswith(b"\n") else b"") + lines
        self._made(path)

    @rule(path=PATHS, parts=st.lists(LINES, min_size=2, max_size=8))
    def append_together(self, path: str, parts: list[bytes]) -> None:
        async def together() -> None:
            await asyncio.gather(*[self.storage.aappend_lines(path, part) for part in parts])

        self.runner.run(together())
        before = self.model.get(path, b"")
        self.model[path] = (
            before + (b"\n" if before and not before.endswith(b"\n") else b"") + b"".join(parts)
        )
        self._made(path)

    @rule(path=PATHS, awaited=COLOURS)
    def read(self, path: str, awaited: bool) -> None:
        try:
            data = self.call(awaited, "read", path)
        except NotFoundError:
            data = None
        assert data == self.model.get(path)

    @rule(path=PATHS, offset=st.integers(0, 50), length=st.none() | st.integers(0, 50), awaited=COLOURS)
    def read_range(self, path: str, offset: int, length: int | None, awaited: bool) -> None:
        expected = self.model.get(path)
        if expected is not None:
            expected = expected[offset:] if length is None else expected[offset : offset + length]
        try:
            data = self.call(awaited, "read_range", path, offset, length)
        except NotFoundError:
            data = None
        assert data == expected

    @rule(path=PATHS | st.sampled_from(FOLDERS), awaited=COLOURS)
    def stat(self, path: str, awaited: bool) -> None:
        stat = self.call(awaited, "stat", path)
        assert self.call(awaited, "exists", path) == (path in self.model)
        assert (None if stat is None else stat.size) == (
            len(self.model[path]) if path in self.model else None
        )

    @rule(folder=st.sampled_from(FOLDERS) | PATHS, awaited=COLOURS)
    def listing(self, folder: str, awaited: bool) -> None:
        names = self.call(awaited, "list_dir", folder)
        self.check_names(folder, names)
        files = [name for name in names if f"{folder}/{name}".lstrip("/") in self.model]
        listing = self.call(awaited, "scan", folder, self.listings.get(folder))
        assert list(listing.files) == files
        assert listing.folders == [name for name in names if name not in files]
        sizes = [len(self.model[f"{folder}/{name}".lstrip("/")]) for name in files]
        assert [stat.size for stat in listing.files.values()] == sizes
        self.listings[folder] = listing

    @rule(
        folder=st.sampled_from(FOLDERS),
        starting=st.sampled_from(["", "f", "b/", "a", "g.", "zz"]),
        awaited=COLOURS,
    )
    def find(self, folder: str, starting: str, awaited: bool) -> None:
        start = f"{folder}/" if folder else ""
        below = {path[len(start) :]: data for path, data in self.model.items() if path.startswith(start)}
        found = self.call(awaited, "find", folder, starting)
        assert [(path, stat.size) for path, stat in found.items()] == [
            (path, len(data)) for path, data in sorted(below.items()) if path.startswith(starting)
        ]

    @rule(path=PATHS, awaited=COLOURS)
    def remove(self, path: str, awaited: bool) -> None:
        self.call(awaited, "remove", path)
        self.model.pop(path, None)

    @rule(folder=st.sampled_from(FOLDERS[1:]), awaited=COLOURS)
    def remove_dir(self, folder: str, awaited: bool) -> None:
        empty = not self._children(folder)
        self.call(awaited, "remove_dir", folder)
        if empty:
            self.folders.discard(folder)

    @rule(folder=st.sampled_from(["a", "ü %#"]), awaited=COLOURS)
    def write_over_a_folder(self, folder: str, awaited: bool) -> None:
        if folder in self.folders and self.keeps_folders:
            for name in ("write",) if self.spools else ("write", "append"):
                with pytest.raises(StorageIOError):
                    self.call(awaited, name, folder, b"1")

    @rule(awaited=COLOURS)
    def close(self, awaited: bool) -> None:
        self.call(awaited, "flush")
        self.call(awaited, "close")

    @rule()
    def go_on_with_a_pickled_copy(self) -> None:
        self.storage = pickle.loads(pickle.dumps(self.storage))

    @invariant()
    def all_is_there(self) -> None:
        if hasattr(self, "model"):
            found = {path: self.storage.read(path) for path in self.storage.find("")}
            assert found == self.model


class LocalMachine(StorageMachine):
    def make(self, folder: Path) -> Storage:
        return LocalStorage(folder)


class SyncOnlyMachine(StorageMachine):
    def make(self, folder: Path) -> Storage:
        (folder / "root").mkdir()
        return as_storage(SyncFolder(folder / "root"))


class MemoryMachine(StorageMachine):
    keeps_folders = False

    def make(self, folder: Path) -> Storage:
        return MemoryStorage(str(folder))


class FsspecFileMachine(StorageMachine):
    def make(self, folder: Path) -> Storage:
        (folder / "root").mkdir()
        return FsspecStorage("file", str(folder / "root"))


class FsspecMemoryMachine(StorageMachine):
    keeps_folders = False

    def make(self, folder: Path) -> Storage:
        return FsspecStorage("memory", str(folder))


class FsspecWholeFilesMachine(StorageMachine):
    spools = True

    def make(self, folder: Path) -> Storage:
        return FsspecStorage(filesystems.WholeFilesOnDisk(), str(folder / "root"))


class FsspecObjectsMachine(StorageMachine):
    keeps_folders = False

    def make(self, folder: Path) -> Storage:
        return FsspecStorage("objects", str(folder))


class FsspecAsyncMachine(StorageMachine):
    keeps_folders = False

    def make(self, folder: Path) -> Storage:
        return FsspecStorage("asyncobjects", str(folder))


TestFsspecFile = FsspecFileMachine.TestCase
TestFsspecMemory = FsspecMemoryMachine.TestCase
TestFsspecWholeFiles = FsspecWholeFilesMachine.TestCase
TestFsspecObjects = FsspecObjectsMachine.TestCase
TestFsspecAsync = FsspecAsyncMachine.TestCase
TestLocal = LocalMachine.TestCase
TestSyncOnly = SyncOnlyMachine.TestCase
TestMemory = MemoryMachine.TestCase
