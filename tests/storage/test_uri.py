"""From what a user names to a storage: paths, URIs, objects."""

from pathlib import Path, PosixPath

import pytest

from runstore import (
    InvalidInputError,
    LocalStorage,
    Storage,
    TrainingRunStore,
    storage_from_uri,
    storage_join,
)
from runstore.storage import as_storage
from tests.storages import MemoryStorage, SyncFolder

# Each is refused, with a message that helps; none ever makes a folder.
REFUSED = {
    "": "empty",
    "s3:/b/r": "lost a slash",
    "s3:b/r": "lost a slash",
    "S3:/b/r": "lost a slash",
    " s3:/b/r": "lost a slash",
    "gs:/b/r": "lost a slash",
    "memory:/x": "lost a slash",
    "unknown:/x": "lost a slash",
    "s3://b/r": "local disks",
    "S3://b/r": "local disks",
    " s3://b/r": "local disks",
    "gs://b/r": "local disks",
    "ftp://host/r": "local disks",
    "no-such-scheme://x": "'no-such-scheme://'",
    "file://relative": "host 'relative'",
    "file://relative/path": "three slashes",
    "file://": "three slashes",
    "file:///a?b": "%3F",
    "file:///a#b": "%23",
    "~no-such-user-here/runs": "no-such-user-here",
    "a\0b": "NUL",
    "file:///a%00b": "NUL",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home that is also the current folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_b07_paths_and_file_uris(home: Path) -> None:
    """Plain paths, `~` and file URIs name a local folder, percent-decoded only in a URI."""
    expected = {
        "runs": home / "runs",
        "runs/": home / "runs",
        "./runs": home / "runs",
        ".": home,
        "~": home,
        "~/runs": home / "runs",
        "/tmp/a b": Path("/tmp/a b"),
        "/tmp/a%20b": Path("/tmp/a%20b"),
        "/tmp/a#b?c": Path("/tmp/a#b?c"),
        "file:///tmp/a%20b": Path("/tmp/a b"),
        "FILE:///tmp/a%23b%3Fc": Path("/tmp/a#b?c"),
        "file://localhost/tmp/a": Path("/tmp/a"),
        "file:/tmp/a": Path("/tmp/a"),
        "file:///tmp/a/": Path("/tmp/a"),
        "a:b": home / "a:b",
        "C:": home / "C:",
    }
    found = {}
    for uri in expected:
        storage = storage_from_uri(uri)
        assert isinstance(storage, LocalStorage)
        found[uri] = storage.root
    assert found == expected
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("uri", REFUSED)
def test_b07_what_cannot_be_right_is_refused(home: Path, uri: str) -> None:
    """A collapsed URI, an unknown scheme and other mistakes are errors that help; nothing is made."""
    for use in (storage_from_uri, as_storage, TrainingRunStore):
        with pytest.raises(InvalidInputError) as caught:
            use(uri)
        assert REFUSED[uri] in str(caught.value)
        assert isinstance(caught.value, ValueError)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("uri", ["s3://b/r", "s3:/b/r", "S3://b/r", "gs://b/r", "file:///x", "memory://x"])
def test_b07_no_folder_is_ever_named_like_a_scheme(home: Path, uri: str) -> None:
    """Neither a URI nor its `Path`, given to any entrance, makes a folder `s3:`."""
    for use in (LocalStorage, storage_from_uri, TrainingRunStore):
        for form in (uri, PosixPath(uri)):
            if use is not LocalStorage and uri.startswith("file:"):
                continue  # these take it for what it is
            with pytest.raises(InvalidInputError):
                use(form)
    assert list(home.iterdir()) == []


def test_b07_a_file_uri_through_path_still_works(tmp_path: Path) -> None:
    """`Path("file:///x")` drops two slashes, which leaves a URI that is valid all the same."""
    storage = storage_from_uri(PosixPath(f"file://{tmp_path}/a"))
    assert isinstance(storage, LocalStorage)
    assert storage.root == tmp_path / "a"


@pytest.mark.parametrize("name", ["a b", "100%", "%20", "a#b", "a?b", "ü", "日本語", "+", "a:b", "\udcff"])
def test_b07_url_and_storage_from_uri_are_inverse(tmp_path: Path, name: str) -> None:
    """The URI that a local storage gives for a path opens the same folder."""
    storage = LocalStorage(tmp_path / name)
    storage.write("sub/f", b"1")
    for path in ("", "sub"):
        again = storage_from_uri(storage.url(path))
        assert isinstance(again, LocalStorage)
        assert again.root == tmp_path / name / path
    assert storage_from_uri(storage.url("sub")).read("f") == b"1"
    assert storage.url().isascii()


def test_the_root_of_the_disk_is_a_root(tmp_path: Path) -> None:
    """`/` itself works, and its URIs have three slashes."""
    storage = LocalStorage("/")
    assert storage.url() == "file:///"
    assert storage.url("a/b") == "file:///a/b"
    (tmp_path / "f").write_bytes(b"1")
    assert storage.read(str(tmp_path / "f")[1:]) == b"1"


def test_a_relative_root_does_not_move_with_the_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage keeps its folder when the process changes into another one."""
    storage = LocalStorage("runs")
    (home / "other").mkdir()
    monkeypatch.chdir(home / "other")
    storage.write("f", b"1")
    assert (home / "runs" / "f").read_bytes() == b"1"
    assert storage.root == home / "runs"


def test_options_are_taken_for_local_folders_too(tmp_path: Path) -> None:
    """One call with the options of a bucket works for a local path, which has no use for them."""
    assert isinstance(storage_from_uri(str(tmp_path), anon=True, endpoint_url="http://x"), LocalStorage)


def test_any_storage_is_taken(tmp_path: Path) -> None:
    """A storage is used as it is, an object with the sync methods is wrapped, anything else refused."""
    memory: Storage = MemoryStorage(str(tmp_path))
    assert as_storage(memory) is memory
    tmp_path.joinpath("f").write_bytes(b"1")
    assert as_storage(SyncFolder(tmp_path)).read("f") == b"1"
    for other in (None, 7, object(), b"/tmp"):
        with pytest.raises(TypeError, match=r"is no storage: .* \(it has no url, read"):
            as_storage(other)


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ((), ""),
        (("",), ""),
        (("", "", ""), ""),
        (("/",), ""),
        (("a",), "a"),
        (("/a/", "/b/"), "a/b"),
        (("a", "", "b"), "a/b"),
        (("a/b", "c"), "a/b/c"),
        (("a//b",), "a/b"),
        (("a", ".", "b"), "a/b"),
        (("a", "..", "b"), "b"),
        (("a/../..",), ".."),
        (("..", "a"), "../a"),
        (("//a//", "b"), "a/b"),
    ],
)
def test_storage_join(parts: tuple[str, ...], joined: str) -> None:
    """Parts are joined with '/', their outer slashes stripped, empty ones dropped, dots normalised."""
    assert storage_join(*parts) == joined
