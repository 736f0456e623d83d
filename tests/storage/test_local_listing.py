"""Scanning a local folder again: less work for the same answer."""

import os
import time
from pathlib import Path

import pytest

from runstore import LocalStorage, StorageListing
from runstore.storage import _listing


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose names were listed."""
    paths: list[str] = []
    original = _listing._list

    def noted(path: str) -> StorageListing:
        paths.append(path)
        return original(path)

    monkeypatch.setattr(_listing, "_list", noted)
    return paths


def settle(folder: Path, seconds: float = 10.5) -> None:
    """A folder whose names have not changed for a while."""
    now = time.time()
    os.utime(folder, (now, now - seconds))


def test_names_that_cannot_have_changed_are_not_listed_again(tmp_path: Path, listed: list[str]) -> None:
    """Only the files are looked at; with all as it was the same object comes back."""
    storage = LocalStorage(tmp_path)
    for path in ("f", "g", "d/x"):
        storage.write(path, b"1")
    settle(tmp_path)
    first = storage.scan("")
    assert storage.scan("", first) is first
    storage.append("f", b"2")
    second = storage.scan("", first)
    assert [(name, stat.size) for name, stat in second.files.items()] == [("f", 2), ("g", 1)]
    assert second.folders is first.folders
    assert len(listed) == 1
    storage.write("h", b"")
    assert list(storage.scan("", second).files) == ["f", "g", "h"]
    assert len(listed) == 2


def test_a_folder_that_just_changed_is_listed_again(tmp_path: Path, listed: list[str]) -> None:
    """A change within one tick of the disk's clock leaves its time as it was; whole seconds tick slowly."""
    storage = LocalStorage(tmp_path)
    storage.write("f", b"1")
    first = storage.scan("")
    status = tmp_path.stat()
    storage.write("g", b"1")
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(storage.scan("", first).files) == ["f", "g"]
    whole_second = int(time.time()) - 1
    os.utime(tmp_path, (whole_second, whole_second))
    assert storage.scan("").mark is None
    os.utime(tmp_path, (whole_second, whole_second - 5))
    assert storage.scan("").mark is not None
    assert len(listed) == 4


def test_a_listing_is_trusted_for_a_minute(tmp_path: Path, listed: list[str]) -> None:
    """Where a folder's time never changes, as on some network mounts, new names are seen after that."""
    storage = LocalStorage(tmp_path)
    storage.write("f", b"1")
    settle(tmp_path)
    first = storage.scan("")
    assert storage.scan("", first) is first
    for seconds in (61, -5):  # a minute ago, and by a clock that was set back since
        mark = first.mark._replace(listed_ns=time.time_ns() - seconds * 1_000_000_000)
        old = StorageListing(first.files, first.folders, first.place, mark)
        assert storage.scan("", old) == first
        assert storage.scan("", old) is not old
    assert len(listed) == 5


def test_links_and_other_folders_are_listed_again(tmp_path: Path, listed: list[str]) -> None:
    """What a link to a file leads to changes elsewhere; a listing of another folder is of no use."""
    storage = LocalStorage(tmp_path)
    storage.write("a/f", b"1")
    storage.write("b/g", b"1")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "g")
    for folder in ("a", "b"):
        settle(tmp_path / folder)
    first = storage.scan("a")
    assert list(first.files) == ["f", "link"]
    (tmp_path / "b" / "g").unlink()
    assert list(storage.scan("a", first).files) == ["f"]
    settle(tmp_path / "b")
    assert storage.scan("a", storage.scan("b")).files.keys() == {"f"}
    assert len(listed) == 4


def test_names_that_many_folders_have_are_kept_once(tmp_path: Path) -> None:
    """The iterations of hundreds of runs take the memory of those of one."""
    for run in ("a", "b"):
        (tmp_path / run / "iteration_000007").mkdir(parents=True)
    storage = LocalStorage(tmp_path)
    (one,), (two,) = storage.scan("a").folders, storage.scan("b").folders
    assert one == "iteration_000007"
    assert one is two
