"""From what a user names to a storage: paths, URIs, objects."""

import os
import pickle
import socket
import sys
from pathlib import Path, PosixPath
from typing import NoReturn

import pytest

from runstore import (
    FsspecStorage,
    InvalidInputError,
    LocalStorage,
    MissingDependencyError,
    S3Storage,
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
    "s3://": "names no bucket",
    "s3:///r": "names no bucket",
    "gs:///r": "names no bucket",
    "az://": "names no bucket",
    "s3://b/../c": "'..'",
    "s3://b/a/./c": "'.' and '..' are not resolved",
    "memory://../a": "'..'",
    "s3://b/\0": "NUL",
    "s3://b/\udcff": "surrogates",
    "no-such-scheme://x": "no storage for the scheme 'no-such-scheme://'",
    "ftp://": "missing a required argument: 'host'",
    "1s3://b/r": "'1s3' is no scheme",
    "://b/r": "is no scheme",
    "simplecache::s3://b/r": "pass the instance to FsspecStorage",
    "file://relative": "host 'relative'",
    "file://relative/path": "three slashes",
    "file://": "three slashes",
    "file:///a?b": "%3F",
    "file:///a#b": "%23",
    "~no-such-user-here/runs": "no-such-user-here",
    "a\0b": "NUL",
    "file:///a%00b": "NUL",
}

# What each names: its class, and its own URI.
REMOTE = {
    "s3://b": (S3Storage, "s3://b"),
    "s3://b/": (S3Storage, "s3://b"),
    "s3://b/r": (S3Storage, "s3://b/r"),
    "s3://b/r/": (S3Storage, "s3://b/r"),
    "S3://B/r": (S3Storage, "s3://B/r"),
    " s3://b/r": (S3Storage, "s3://b/r"),
    "s3a://b/r": (S3Storage, "s3://b/r"),
    "s3://b//r": (S3Storage, "s3://b//r"),
    "s3://b/a%20b#c?d ": (S3Storage, "s3://b/a%20b#c?d "),
    "s3://b/x://y": (S3Storage, "s3://b/x://y"),
    "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/mine/r": (
        S3Storage,
        "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/mine/r",
    ),
    "memory://": (FsspecStorage, "memory://"),
    "memory://x": (FsspecStorage, "memory:///x"),
    "memory:///x/": (FsspecStorage, "memory:///x"),
    "MEMORY://x/y": (FsspecStorage, "memory:///x/y"),
    "local:///x/a b": (FsspecStorage, "file:///x/a%20b"),
    "ftp://host/r": (FsspecStorage, "ftp://host/r"),
    "ftp://host:2121/r": (FsspecStorage, "ftp://host:2121/r"),
    "https://host/r": (FsspecStorage, "https://host/r"),
}

# The module that a scheme needs, and the package that it is in.
MISSING = {
    "gs://b/r": ("gcsfs", "gcsfs"),
    "GS://b/r": ("gcsfs", "gcsfs"),
    "az://c/r": ("adlfs", "adlfs"),
    "abfs://c/r": ("adlfs", "adlfs"),
    "sftp://user:hunter2@host/r": ("paramiko", "paramiko"),
    "smb://host/r": ("smbclient", "smbprotocol"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home that is also the current folder."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNSTORE_SPOOL_DIR", str(tmp_path / "spool"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever resolves a name or connects fails the test."""

    def refuse(*_: object) -> NoReturn:
        pytest.fail("something was contacted")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


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


@pytest.mark.parametrize("uri", REMOTE)
@pytest.mark.usefixtures("no_network")
def test_b07_a_uri_names_a_remote_storage(home: Path, uri: str) -> None:
    """The scheme, in either case, says which; naming one contacts and makes nothing, nor its copies."""
    kind, url = REMOTE[uri]
    for storage in (storage_from_uri(uri), TrainingRunStore(uri).storage, as_storage(uri)):
        assert type(storage) is kind
        for same in (storage, pickle.loads(pickle.dumps(storage))):
            assert type(same) is kind
            assert same.url() == url
            assert repr(same) == f"{kind.__name__}({url!r})"
            assert same.url("a/b") == f"{url.removesuffix('/')}/a/b"
            assert same.identity() == storage.identity()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["a b", "%20", "a#b", "a?b", "ü", "日本語", "+", "a:b", "x ", "a//b", "s3://c"]
)
def test_b07_url_and_storage_from_uri_are_inverse_in_a_bucket(name: str) -> None:
    """A URI of S3 is literal in both directions."""
    storage = storage_from_uri("s3://bucket/root")
    assert storage.url() == "s3://bucket/root"
    assert storage_from_uri(f"s3://bucket/{name}").url("f") == f"s3://bucket/{name}/f"
    assert storage_from_uri(storage.url("run")).url("f") == storage.url("run/f")


def test_b07_url_and_storage_from_uri_are_inverse_in_memory() -> None:
    """The URI that another filesystem gives for a path opens the same folder."""
    storage = storage_from_uri("memory://test_uri")
    storage.write("a b/ü#%20/f", b"1")
    again = storage_from_uri(storage.url("a b/ü#%20"))
    assert again.read("f") == b"1"
    storage.remove("a b/ü#%20/f")


@pytest.mark.parametrize("uri", MISSING)
def test_b07_a_missing_package_is_named(home: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scheme needs a package, the error holds the command that installs it, and no password."""
    module, package = MISSING[uri]
    monkeypatch.setitem(sys.modules, module, None)
    for use in (storage_from_uri, TrainingRunStore):
        with pytest.raises(MissingDependencyError, match=f"pip install {package}$") as caught:
            use(uri)
        assert isinstance(caught.value, ImportError)
        assert f"'{uri.partition(':')[0].lower()}://'" in str(caught.value)
        assert "hunter2" not in str(caught.value)
    assert list(home.iterdir()) == []


def test_b07_a_password_in_a_uri_is_never_shown() -> None:
    """Of S3 it is refused; where a filesystem takes one in its URI, the storage's own URI is without it."""
    with pytest.raises(InvalidInputError, match="pass key and secret") as caught:
        storage_from_uri("s3://AKEXAMPLE:hunter2@bucket/run")
    assert "hunter2" not in str(caught.value)
    storage = storage_from_uri("ftp://user:hunter2@host/run")
    assert storage.url("f") == "ftp://host/run/f"
    assert "hunter2" not in repr(storage)


def test_the_flush_interval_is_the_storages_own() -> None:
    """It is an option beside those of the filesystem, and refused where it cannot be right."""
    slow, fast = (storage_from_uri("memory://x", flush_interval=seconds) for seconds in (60, 0.5))
    assert slow.identity() == fast.identity()
    for uri in ("s3://b/r", "memory://x"):
        for wrong in (0, -1):
            with pytest.raises(InvalidInputError, match="flush_interval must be positive"):
                storage_from_uri(uri, flush_interval=wrong)


@pytest.mark.parametrize("uri", ["s3://b/r", "s3:/b/r", "S3://b/r", "gs://b/r", "file:///x", "memory://x"])
def test_b07_no_folder_is_ever_named_like_a_scheme(home: Path, uri: str) -> None:
    """A URI is no local folder, and its `Path`, given to any entrance, is an error: no folder `s3:`."""
    for form in (uri, PosixPath(uri)):
        with pytest.raises(InvalidInputError, match="looks like a URI"):
            LocalStorage(form)
    if not uri.startswith("file:"):  # which is taken for what it is
        for use in (storage_from_uri, TrainingRunStore):
            with pytest.raises(InvalidInputError, match="lost a slash"):
                use(PosixPath(uri))
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
