"""Filesystems of fsspec as storages: what the laws of a storage do not say."""

import asyncio
import errno
import gc
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from s3fs import S3FileSystem

from runstore import (
    BucketNotFoundError,
    FsspecStorage,
    InvalidInputError,
    RunStoreError,
    S3Storage,
    Storage,
    StorageIOError,
    TrainingRunStore,
    UnavailableError,
    storage_from_uri,
)
from tests.filesystems import AsyncObjects, Objects
from tests.scripts import run, start, write_script

REPOSITORY = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that appends wait in."""
    monkeypatch.setenv("RUNSTORE_SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder of a filesystem that no other test uses."""
    return str(tmp_path / "root")


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# ---- appends where files are written whole


class Flaky(Objects):
    """Writes that fail as told: before or after they have acted."""

    failures: list[tuple[str, Exception]] = []  # noqa: RUF012  of the test that runs
    writes = 0

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        when, error = self.failures.pop(0) if self.failures else ("never", Exception())
        if when == "before":
            raise error
        super().pipe_file(path, value, mode, **kwargs)
        type(self).writes += 1
        if when == "after":
            raise error


@pytest.fixture
def flaky() -> Iterator[Flaky]:
    Flaky.failures, Flaky.writes = [], 0
    yield Flaky()
    Flaky.failures = []


def test_a_write_that_fails_after_it_acted_is_not_repeated(flaky: Flaky, root: str) -> None:
    """An answer that is lost is found out by looking: the lines are there once, and no error is raised."""
    storage = FsspecStorage(flaky, root)
    storage.append_lines("f", b"1\n")
    storage.flush()
    Flaky.failures = [("after", ConnectionResetError(errno.ECONNRESET, "reset"))]
    storage.append_lines("f", b"2\n")
    storage.append_lines("f", b"2\n")
    storage.flush()
    assert flaky.cat_file(f"{root}/f") == b"1\n2\n2\n"
    assert Flaky.writes == 2


def test_a_write_that_fails_before_it_acts_is_repeated(flaky: Flaky, root: str) -> None:
    """A store that is away for a moment is tried again within the flush."""
    storage = FsspecStorage(flaky, root)
    Flaky.failures = [("before", TimeoutError()), ("before", ConnectionRefusedError())]
    storage.append_lines("f", b"1\n")
    storage.flush()
    assert flaky.cat_file(f"{root}/f") == b"1\n"


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_failed_flush_left_is_delivered_once_by_the_next(flaky: Flaky, root: str, when: str) -> None:
    """A failure that trying again cannot help is raised; the appends wait, and arrive once."""
    storage = FsspecStorage(flaky, root)
    storage.append("f", b"torn")
    storage.flush()
    for number in range(3):
        Flaky.failures = [(when, PermissionError(errno.EACCES, "denied"))]
        storage.append_lines("f", b"%d\n" % number)
        with pytest.raises(RunStoreError, match="denied"):
            storage.flush()
    storage.append_lines("f", b"last\n")
    storage.flush()
    assert flaky.cat_file(f"{root}/f") == b"torn\n0\n1\n2\nlast\n"


LINES = st.sampled_from([b"a\n", b"a\n", b"bb\n", b"torn"])
FAILURES = st.sampled_from(["before", "after", "never"])


@given(st.lists(st.tuples(st.lists(LINES, max_size=3), st.lists(FAILURES, max_size=2)), max_size=6))
def test_whatever_fails_when_all_arrives_once_and_in_order(
    steps: list[tuple[list[bytes], list[str]]],
) -> None:
    """Whatever order of appends, and of flushes that fail before or after they act, nothing shows of it."""
    Flaky.store.clear()
    storage, expected = FsspecStorage(Flaky(), "/any"), b""
    for lines, failures in steps:
        for line in lines:
            storage.append_lines("f", line)
            expected += b"\n" + line if expected and not expected.endswith(b"\n") else line
        Flaky.failures = [(when, OSError(errno.EIO, "broken")) for when in failures if when != "never"]
        try:
            storage.flush()
        except StorageIOError:
            continue
    Flaky.failures = []
    assert (storage.read("f") if storage.exists("f") else b"") == expected
    storage.close()


# Appends and flushes; the filesystem kills the process in the flush that it is told.
DEADLY = f"""
import os, signal, sys
sys.path.append({REPOSITORY!r})
from runstore import FsspecStorage
from tests.filesystems import WholeFilesOnDisk

_, root, when, deadly, *batches = sys.argv

class Deadly(WholeFilesOnDisk):
    calls = 0

    def pipe_file(self, path, value, **kwargs):
        Deadly.calls += 1
        if when == "before" and Deadly.calls == int(deadly):
            os.kill(os.getpid(), signal.SIGKILL)
        super().pipe_file(path, value, **kwargs)
        if when == "after" and Deadly.calls == int(deadly):
            os.kill(os.getpid(), signal.SIGKILL)

os.makedirs(root)
storage = FsspecStorage(Deadly(), root)
for batch in batches:
    for line in batch.split(","):
        storage.append_lines("f", line.encode() + b"\\n")
    storage.flush()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("deadly", [1, 2])
def test_a_process_killed_in_a_flush_loses_and_repeats_nothing(
    tmp_path: Path, root: str, spool: Path, when: str, deadly: int
) -> None:
    """Killed before the file is written, or before that is noted: the next one delivers each line once."""
    script = write_script(tmp_path, DEADLY)
    batches = ["1,2,2", "2,3"][:deadly]
    died = run(script, root, when, deadly, *batches)
    assert died.returncode == -signal.SIGKILL
    storage = FsspecStorage("whole", root)
    storage.append_lines("f", b"2\n")  # its own goes after
    storage.flush()
    expected = ",".join(batches).split(",")
    assert (Path(root) / "f").read_bytes() == "".join(f"{line}\n" for line in [*expected, "2"]).encode()
    storage.close()
    assert files_in(spool) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_reading_finds_what_a_killed_process_left(tmp_path: Path, root: str, when: str) -> None:
    """A reader in a new process, which appends nothing, sees each acknowledged line once."""
    run(write_script(tmp_path, DEADLY), root, when, 1, "1,2")
    assert FsspecStorage("whole", root).read("f") == b"1\n2\n"
    assert FsspecStorage("whole", root).read("f") == b"1\n2\n"


# Appends numbers, saying so, and flushes as it likes, until it is killed.
ENDLESS = f"""
import itertools, sys
sys.path.append({REPOSITORY!r})
import tests.filesystems
from runstore import FsspecStorage

_, root, name = sys.argv
storage = FsspecStorage("whole", root)
for number in itertools.count():
    storage.append_lines("f", f"{{name}} {{number}}\\n".encode())
    print(number, flush=True)
    if number % 3 == 2:
        storage.flush()
"""


def test_killed_at_random_every_acknowledged_line_arrives_once(tmp_path: Path, root: str) -> None:
    """Five processes, one after the other, each killed while it appends and flushes."""
    script = write_script(tmp_path, ENDLESS)
    Path(root).mkdir()
    acknowledged: list[str] = []
    for name in "abcde":
        with start(script, root, name) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(20 + 7 * ord(name) % 5)]
            process.send_signal(signal.SIGKILL)
            acknowledged += [f"{name} {line.strip()}" for line in [*said, *process.stdout]]
    lines = FsspecStorage("whole", root).read("f").decode().splitlines()
    assert len(lines) == len(set(lines))
    assert set(acknowledged) <= set(lines)
    # The last one of each may have been appended and not said so.
    assert len(lines) - len(acknowledged) <= 5
    assert lines == sorted(lines, key=lambda line: (line[0], int(line[2:])))


def test_what_was_appended_to_another_file_is_kept_for_people(
    tmp_path: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the file was made shorter after a process died, its lines are set aside and reported."""
    run(write_script(tmp_path, DEADLY), root, "before", 2, "1,2,3", "4")
    (Path(root) / "f").write_bytes(b"1\n")
    assert FsspecStorage("whole", root).read("f") == b"1\n"
    assert "truncated or replaced" in caplog.text
    (kept,) = tmp_path.rglob("*.stale")
    assert kept.read_bytes() == b"4\n"


# ---- filesystems that can append


def test_a_filesystem_that_appends_does_so_at_once(root: str, spool: Path) -> None:
    """An append to `file://` or `memory://` is in the file when it returns, and nothing is spooled."""
    on_disk, in_memory = FsspecStorage("file", root), FsspecStorage("memory", root)
    for storage in (on_disk, in_memory):
        storage.append("a/f", b"torn")
        storage.append_lines("a/f", b"1\n")
        storage.append("a/f", b"torn again")
        asyncio.run(storage.aappend_lines("a/f", b"2\n"))
    whole = b"torn\n1\ntorn again\n2\n"
    assert (Path(root) / "a" / "f").read_bytes() == MemoryFileSystem().cat_file(f"{root}/a/f") == whole
    assert not spool.exists()


def test_lines_stay_apart_from_what_others_left_torn(root: str) -> None:
    """A torn tail that another program wrote meanwhile costs only itself."""
    storage = FsspecStorage("file", root)
    storage.append_lines("f", b"1\n")
    with (Path(root) / "f").open("ab") as file:
        file.write(b'{"step": 2, "lo')
    storage.append_lines("f", b"3\n")
    assert (Path(root) / "f").read_bytes() == b'1\n{"step": 2, "lo\n3\n'


def test_processes_append_whole_lines(tmp_path: Path, root: str) -> None:
    """Four processes that append to one file of `file://` at once lose and merge nothing."""
    script = write_script(
        tmp_path,
        """
        import sys
        from runstore import FsspecStorage
        storage = FsspecStorage("file", sys.argv[1])
        sys.stdin.readline()
        for number in range(100):
            storage.append_lines("f", f"{sys.argv[2]} {number} {'x' * 20_000}\\n".encode())
        """,
    )
    writers = [start(script, root, name) for name in "abcd"]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.communicate(timeout=50) for writer in writers] == [("", "")] * 4
    lines = [line for line in (Path(root) / "f").read_text().splitlines() if line]
    assert sorted(lines) == sorted(f"{name} {n} {'x' * 20_000}" for name in "abcd" for n in range(100))


def test_what_is_in_the_way_is_said(root: str) -> None:
    """A folder at the path, or a file above it, is a `StorageIOError` that names the path."""
    storage = FsspecStorage("file", root)
    storage.write("folder/f", b"1")
    writes: list[Callable[[str, bytes], None]] = [storage.write, storage.append, storage.append_lines]
    for write in writes:
        for path, hint in (("folder", "A folder is in the way"), ("folder/f/g", "A parent of this path")):
            with pytest.raises(StorageIOError, match=f"{hint}.*{path}"):
                write(path, b"2\n")
    assert files_in(Path(root)) == [Path(root) / "folder" / "f"]


def test_a_written_file_has_the_permissions_that_others_have(root: str) -> None:
    """They follow the umask, as those of any new file."""
    before = os.umask(0o027)
    try:
        FsspecStorage("file", root).write("f", b"1")
    finally:
        os.umask(before)
    assert (Path(root) / "f").stat().st_mode & 0o777 == 0o640


def test_a_link_is_what_it_leads_to(root: str) -> None:
    """In a listing too; one that leads nowhere is nothing."""
    (Path(root) / "folder").mkdir(parents=True)
    (Path(root) / "folder" / "f").write_bytes(b"123")
    for link, target in (("to folder", "folder"), ("to file", "folder/f"), ("to nothing", "missing")):
        (Path(root) / link).symlink_to(target)
    listing = FsspecStorage("file", root).scan("")
    assert listing.folders == ["folder", "to folder"]
    assert {name: stat.size for name, stat in listing.files.items()} == {"to file": 3}
    assert list(FsspecStorage("file", root).find("")) == ["folder/f", "to file", "to folder/f"]


def test_the_time_of_a_change_is_that_of_the_last_one(root: str) -> None:
    """`memory://` tells of a file when it was made; appending to it counts all the same."""
    storage = FsspecStorage("memory", root)
    storage.append("f", b"1\n")
    MemoryFileSystem().store[f"{root}/f"].created = datetime(2001, 1, 1, tzinfo=UTC)
    storage.append("f", b"2\n")
    stat = storage.stat("f")
    assert stat is not None
    assert abs(stat.mtime - datetime.now(UTC).timestamp()) < 60
    assert storage.scan("").files["f"] == storage.find("")["f"] == stat


# ---- filesystems that are handed over


def test_a_class_or_another_object_is_refused() -> None:
    """What is no filesystem is told by its type; nothing that it holds is shown."""
    wrong = (S3FileSystem, MemoryFileSystem, {"key": "hunter2"}, None, b"s3", Path("s3"), object())
    for fs in wrong:
        with pytest.raises(InvalidInputError, match="is no filesystem: pass an instance") as caught:
            FsspecStorage(fs, "b/r")
        assert "hunter2" not in str(caught.value)
    for name in ("s3://", "s3:", "b/r"):
        with pytest.raises(InvalidInputError, match="pass URIs to storage_from_uri"):
            FsspecStorage(name, "b/r")
    with pytest.raises(InvalidInputError, match="'gs://', which is not of this filesystem: memory"):
        FsspecStorage("memory", "gs://b/r")
    with pytest.raises(InvalidInputError, match="'gs://', which is not of this filesystem: s3"):
        FsspecStorage("s3", "gs://b/r")
    with pytest.raises(InvalidInputError, match="is not in S3"):
        S3Storage("memory", "b/r")


def test_a_filesystem_of_s3_becomes_s3() -> None:
    """Whatever way its options were given; the instance, its loop and its caches are left alone."""
    by_place = (False, "http://127.0.0.1:9", "AKEXAMPLE", "hunter2")
    fs = S3FileSystem(*by_place, skip_instance_cache=True)
    named: dict[str, Any] = {
        "endpoint_url": "http://127.0.0.1:9",
        "key": "AKEXAMPLE",
        "secret": "hunter2",
        "anon": False,
    }
    expected = S3Storage("s3", "b/r", **named)
    for storage in (
        FsspecStorage(fs, "b/r"),
        FsspecStorage(fs, "s3://b/r"),
        S3Storage(fs, "b/r"),
        FsspecStorage(S3FileSystem(**named, asynchronous=True, use_listings_cache=True), "b/r"),
        FsspecStorage(S3FileSystem(anon=True), "b/r", **named),
        FsspecStorage(DirFileSystem("b", fs), "r"),
        FsspecStorage(DirFileSystem("r", DirFileSystem("b", fs))),
    ):
        assert storage.url("f") == "s3://b/r/f"
        assert storage.identity() == expected.identity()
        assert "hunter2" not in repr(storage)
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:9"):
        FsspecStorage(fs, "b/r").read("f")
    assert fs._s3 is None
    assert fs.dircache == {}


def test_an_asynchronous_filesystem_is_not_used_itself(root: str) -> None:
    """It belongs to the loop of whoever made it: one like it is made for the I/O loop."""
    fs = AsyncObjects(0.001)
    storage = FsspecStorage(fs, root)
    storage.write("f", b"1")
    assert asyncio.run(storage.aread("f")) == b"1"
    assert fs._session is None
    assert storage.identity() == FsspecStorage("asyncobjects", root, latency=0.001).identity()


def test_an_asynchronous_filesystem_serves_many_loops_and_threads(root: str) -> None:
    """Its session stays on one loop, whoever calls from wherever."""
    storage = FsspecStorage("asyncobjects", root)
    failures: list[BaseException] = []

    async def on_a_loop(name: str) -> None:
        for number in range(10):
            await asyncio.gather(
                storage.awrite(f"{name}/{number}", b"1"), storage.aappend_lines("log", b"%d\n" % number)
            )
            assert await storage.aread(f"{name}/{number}") == b"1"

    def in_a_thread(name: str) -> None:
        try:
            asyncio.run(on_a_loop(name))
            for number in range(10):
                storage.write(f"{name} sync/{number}", b"1")
                assert storage.read(f"{name} sync/{number}") == b"1"
        except BaseException as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=in_a_thread, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert failures == []
    assert len(storage.find("")) == 4 * 20 + 1
    assert sorted(storage.read("log").split()) == sorted([b"%d" % n for n in range(10)] * 4)


def test_private_files_of_two_instances_are_told_apart(root: str) -> None:
    """An instance that is not asynchronous is used itself, as it may hold the files."""
    one, two = (MemoryFileSystem(global_store=False, skip_instance_cache=True) for _ in range(2))
    first, second = FsspecStorage(one, root), FsspecStorage(two, root)
    first.write("f", b"1")
    assert one.cat_file(f"{root}/f") == b"1"
    assert not second.exists("f")
    assert first.identity() != second.identity()
    assert first.identity() == FsspecStorage(one, root).identity()


def test_the_folder_of_another_filesystem(root: str) -> None:
    """A `DirFileSystem` is the folder that it names, and stays in it."""
    storage = FsspecStorage(DirFileSystem(f"{root}/a", MemoryFileSystem()), "b")
    storage.write("f", b"1")
    assert MemoryFileSystem().cat_file(f"{root}/a/b/f") == b"1"
    assert storage.url("f") == f"memory://{root}/a/b/f"
    with pytest.raises(InvalidInputError, match=r"'\.\.'"):
        FsspecStorage(DirFileSystem(f"{root}/a", MemoryFileSystem()), "../b")


class Listing(Objects):
    """Keeps its listings, as several filesystems do."""

    def ls(self, path: str, *, detail: bool = True, **kwargs: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail, **kwargs)
        return self.dircache[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_d01_a_kept_listing_is_not_believed(root: str) -> None:
    """What others add is seen by the next listing, also where the filesystem handed over keeps them."""
    storage = FsspecStorage(Listing(), root)
    storage.write("a", b"1")
    assert storage.list_dir("") == ["a"]
    Objects().pipe_file(f"{root}/b", b"1")
    assert storage.list_dir("") == ["a", "b"]


class Connected(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Knows which process its connections belong to, and what is alive."""

    protocol = "connected"
    cachable = False
    made: list["weakref.ref[Connected]"] = []  # noqa: RUF012  all of them

    def __init__(self, host: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.process = os.getpid()
        self.made.append(weakref.ref(self))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return b"%d" % self.process


def test_a_forked_child_has_connections_of_its_own(root: str) -> None:
    """A filesystem handed over, or made here, is made anew in a child: no socket is shared."""
    storages = [FsspecStorage(Connected(), root), FsspecStorage(Connected("host"), root, host="other")]
    for storage in storages:
        assert storage.read("f") == b"%d" % os.getpid()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        told = b"no answer"
        try:
            told = b" ".join([b"%d" % os.getpid(), *[storage.read("f") for storage in storages]])
        finally:
            os.write(write, told)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).split() == [b"%d" % child] * 3
    for storage in storages:
        assert storage.read("f") == b"%d" % os.getpid()
    for descriptor in (read, write):
        os.close(descriptor)


def alive() -> int:
    gc.collect()
    return sum(made() is not None for made in Connected.made)


def test_closing_the_last_storage_lets_go_of_the_filesystem(root: str) -> None:
    """What was made is let go of by whoever closes last; what was handed over is kept."""
    one, two = (FsspecStorage(Connected(), root, host="shared") for _ in range(2))
    one.read("f")
    two.read("f")
    before = alive()
    one.close()
    assert alive() == before
    two.close()
    assert alive() == before - 1
    assert two.read("f") == b"%d" % os.getpid()
    handed = Connected()
    with FsspecStorage(handed, root) as storage:
        storage.read("f")
    assert storage.read("f") == b"%d" % os.getpid()
    two.close()


# ---- errors and secrets


class Buckets(AsyncObjects):
    """As Google's: writing to a bucket that is not there is "not found"."""

    protocol = "gs"
    made = False

    async def _pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        if not self.made:
            raise FileNotFoundError(path)
        await super()._pipe_file(path, value, **kwargs)


def test_d05_a_missing_bucket_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that finds no bucket says so, and none is created; appends wait until it is there."""
    storage = FsspecStorage(Buckets(), "missing/run")
    storage.append("f", b"1")
    for write in (partial(storage.write, "f", b"1"), storage.flush):
        with pytest.raises(BucketNotFoundError, match=r"none is created.*gs://missing/run/f"):
            write()
    monkeypatch.setattr(Buckets, "made", True)
    assert storage.read("f") == b"1"
    with pytest.raises(InvalidInputError, match="needs a bucket: gs://bucket/prefix"):
        FsspecStorage(Buckets(), "")


class Secretive(AsyncObjects):
    """Tells its secrets in its errors."""

    protocol = "secretive"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    async def _connected(self) -> None:
        await asyncio.sleep(0)

    async def _rm_file(self, path: str, **_: Any) -> None:
        msg = f"refused with {self.options}"
        raise RuntimeError(msg)


SECRETS: dict[str, Any] = {
    "token": "hunter2-token",
    "password": "hunter2-password",
    "client_kwargs": {"aws_secret_access_key": "hunter2-nested"},
    "connection_string": "AccountName=mine;AccountKey=hunter2/key==;EndpointSuffix=core.windows.net",
}


def test_d13_secrets_are_never_shown_or_stored(
    root: str, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in repr, str, URI, log, the message of an error, or the files that appends wait in."""
    caplog.set_level(logging.DEBUG)
    storage = FsspecStorage(Secretive(**SECRETS), root, sas_token="hunter2-sas")
    storage.write("f", b"1")
    storage.append("log", b"1\n")
    with pytest.raises(StorageIOError, match=r"refused with .*\*\*\*") as caught:
        storage.remove("f")
    written = [path.read_bytes() for path in files_in(spool)]
    assert len(written) == 2
    texts = [
        repr(storage),
        str(storage),
        storage.url("f"),
        str(caught.value),
        caplog.text,
        *map(str, written),
    ]
    assert [text for text in texts if "hunter2" in text] == []
    storage.close()


def test_a_store_is_the_same_with_other_credentials(root: str) -> None:
    """So what waits is delivered after a password was changed; another place is another store."""
    same = [FsspecStorage(Secretive(**SECRETS | {"token": token}), root) for token in ("old", "new")]
    same[0].append("f", b"1\n")
    same[1].append("f", b"2\n")
    same[1].flush()
    assert AsyncObjects.objects[f"{root}/f"][0] == b"1\n2\n"
    assert same[0].identity() != same[1].identity()
    stores = {
        FsspecStorage(Secretive(**SECRETS | options), root)._files.store()
        for options in (
            {},
            {"token": "another"},
            {"connection_string": SECRETS["connection_string"].replace("hunter2", "another")},
            {"connection_string": SECRETS["connection_string"].replace("mine", "other")},
            {"endpoint_url": "http://127.0.0.1:9"},
            {"host": "h", "port": 21},
        )
    }
    assert len(stores) == 4


# ---- runs


@pytest.mark.parametrize("fs", ["memory", "file", "objects", "asyncobjects", "whole"])
def test_a_run_is_kept_on_any_filesystem(fs: str, root: str) -> None:
    """What a trainer writes comes back, for the writer, for another store, and through its pickled copy."""
    store = TrainingRunStore(FsspecStorage(fs, root), "run")
    store.write_config({"lr": 0.1})
    for step in range(3):
        store.write_metrics({"loss": 1 / (step + 1)}, step=step)
        store.write_rollouts(step, [{"group_idx": 0, "traj_idx": step}])
    store.write_checkpoint({"name": "final"})
    for reader in (store, TrainingRunStore(FsspecStorage(fs, f"{root}/run"))):
        assert reader.read_config() == {"lr": 0.1}
        assert [record["step"] for record in reader.read_metrics()] == [0, 1, 2]
        assert [info.iteration for info in reader.list_iterations()] == [0, 1, 2]
        assert reader.read_rollouts(2) == [{"group_idx": 0, "traj_idx": 2}]
        assert [record.name for record in reader.read_checkpoint_records()] == ["final"]
    assert store.truncate_metrics(1) == 2
    assert [record["step"] for record in store.read_metrics()] == [0]
    store.storage.close()


def test_a01_a_script_that_ends_without_close_loses_nothing(tmp_path: Path, root: str) -> None:
    """What was appended is in the file after the end of the script, which says nothing."""
    script = write_script(
        tmp_path,
        f"""
        import sys
        sys.path.append({REPOSITORY!r})
        import tests.filesystems
        from runstore import FsspecStorage
        storage = FsspecStorage("whole", sys.argv[1])
        for number in range(3):
            storage.append_lines("a/f", f"{{number}}\\n".encode())
        """,
    )
    done = run(script, root, options=("-X", "dev", "-W", "error"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (Path(root) / "a" / "f").read_bytes() == b"0\n1\n2\n"


def test_a_uri_with_options_reaches_the_filesystem(root: str) -> None:
    """Options beside a URI are those of the filesystem, those in a URI too."""
    storage: Storage = storage_from_uri(f"asyncobjects://{root}", latency=0.25)
    assert isinstance(storage, FsspecStorage)
    begin = asyncio.run(_seconds(storage))
    assert begin >= 0.25


async def _seconds(storage: Storage) -> float:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await storage.aexists("f")
    return loop.time() - begin
