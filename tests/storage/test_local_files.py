"""Local files: opening without a trace, atomic rewriting, permissions, links, refusals, full disks."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runstore import (
    AccessDeniedError,
    InvalidInputError,
    IterationInfo,
    LocalStorage,
    NotFoundError,
    StorageFullError,
    StorageIOError,
    StorageListing,
    TrainingRunStore,
)
from runstore.storage import _replace
from tests.scripts import NOBODY, run, start, write_script

REWRITER = """
    import json, sys
    from runstore import LocalStorage

    storage = LocalStorage(sys.argv[1], mkdir=False)
    number = 0
    print("ready", flush=True)
    while True:
        number += 1
        tree = {"number": number, "text": "x" * int(sys.argv[2]), "end": number}
        storage.write("tree.json", json.dumps(tree).encode())
        storage.write(f"new/{number % 50}.json", b"{}")
"""

READ_WITHOUT_RIGHTS = (
    """
    import asyncio, sys
    from pathlib import Path
    from runstore import LocalStorage, TrainingRunStore, storage_from_uri

    root = sys.argv[1]

    def use(storage):
        store = TrainingRunStore(storage, "run")
        found = [
            storage.list_dir(""), storage.list_dir("run"), storage.find(""), storage.exists("run/f"),
            store.list_iterations(), store.list_logtrees(3), store.read_config(), store.read_metrics(),
            store.read_rollouts(3), store.read_checkpoints(), store.read_timing(), store.url(),
        ]
        store.storage.close()
        return len(found)

    async def use_async(storage):
        store = TrainingRunStore(storage, "run")
        await store.alist_iterations(), await store.aread_metrics(), await storage.alist_dir("run")
        await store.storage.aclose()

    use(LocalStorage(root)), asyncio.run(use_async(LocalStorage(root)))  # everything is imported
"""
    + NOBODY.replace("\n", "\n    ")
    + """
    for storage in (LocalStorage(root), LocalStorage(root, mkdir=False), storage_from_uri(root)):
        assert use(storage) == 12
        asyncio.run(use_async(storage))
    print("done")
"""
)

READ_ONLY = (
    """
    import asyncio, sys
    from runstore import AccessDeniedError, LocalStorage

    storage = LocalStorage(sys.argv[1])
    asyncio.run(storage.aread("own/f.jsonl"))  # everything is imported
"""
    + NOBODY.replace("\n", "\n    ")
    + """
    def refused(call, *args):
        try:
            call(*args)
        except AccessDeniedError as error:
            assert isinstance(error, PermissionError) and error.errno, repr(error)
            assert sys.argv[1] in str(error), str(error)
            assert isinstance(error.__cause__, OSError), repr(error.__cause__)
        else:
            raise AssertionError(call)

    async def arefused():
        for call in (storage.aappend_lines, storage.aappend, storage.awrite, storage.aremove):
            try:
                await call(*("own/f.jsonl", b"2\\n")[: 1 if call == storage.aremove else 2])
            except AccessDeniedError:
                continue
            raise AssertionError(call)

    refused(storage.append_lines, "own/f.jsonl", b"2\\n")
    refused(storage.append, "own/new.jsonl", b"2\\n")
    refused(storage.write, "own/f.jsonl", b"2\\n")
    refused(storage.write, "new/f.jsonl", b"2\\n")
    refused(storage.remove, "own/f.jsonl")
    refused(storage.remove_dir, "own")
    refused(storage.read, "secret")
    refused(LocalStorage, sys.argv[1] + "/new")
    asyncio.run(arefused())
    storage.remove("own/missing")
    assert storage.read("own/f.jsonl") == b"1\\n"
    print("refused", flush=True)
    sys.stdin.readline()
    storage.append_lines("own/f.jsonl", b"2\\n")
    storage.write("own/g", b"3")
    assert storage.read("own/f.jsonl") == b"1\\n2\\n"
    print("done")
"""
)

OPENER = """
    import sys
    from runstore import LocalStorage

    print("ready", flush=True)
    sys.stdin.readline()
    storage = LocalStorage(sys.argv[1])
    storage.append_lines("a/b/f.jsonl", b"%d\\n" % int(sys.argv[2]))
    storage.write(f"c/d/{sys.argv[2]}", b"x")
"""


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def look(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything that is in a folder: mode, times and content."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ctime_ns, data)
    return found


def leftovers(folder: Path) -> list[str]:
    """Temporary files, which listings of the storage do not show."""
    return [str(path) for path in folder.rglob(f"*{_replace.TEMP_SUFFIX}")]


# ---- opening


def test_b03_opening_and_reading_a_run_leaves_no_trace(common: Path) -> None:
    """Opening, listing and reading a run changes no byte and no time and needs no right to write."""
    store = TrainingRunStore(LocalStorage(common / "runs"), "run")
    store.write_config({"a": 1})
    store.write_metrics({"loss": 0.5}, step=1)
    store.storage.append("run/metrics.jsonl", b'{"step": 2, "lo')  # its writer died
    store.write_rollouts(3, [{"group_idx": 0, "traj_idx": 0}])
    store.write_logtree(3, {"root": []})
    store.write_checkpoint({"name": "1"})
    (common / "runs" / f".0{_replace.TEMP_SUFFIX}").write_bytes(b"left behind")
    before = look(common / "runs")
    done = run(write_script(common, READ_WITHOUT_RIGHTS), common / "runs")
    assert (done.stderr, done.stdout) == ("", "done\n")
    assert look(common / "runs") == before


def test_b03_a_missing_folder_is_not_made_by_looking(tmp_path: Path) -> None:
    """Without `mkdir`, only the first write makes the folder."""
    storage = LocalStorage(tmp_path / "a" / "b", mkdir=False)
    assert storage.list_dir("") == []
    assert storage.find("") == {}
    assert not storage.exists("f")
    storage.close()
    assert not (tmp_path / "a").exists()
    storage.append("f", b"1")
    assert (tmp_path / "a" / "b" / "f").read_bytes() == b"1"


def test_b15_fifty_processes_open_one_new_root(tmp_path: Path) -> None:
    """Many processes that make the same folders at once all succeed, and lose nothing."""
    script, root = write_script(tmp_path, OPENER), tmp_path / "new" / "root"
    with contextlib.ExitStack() as stack:
        openers = [stack.enter_context(start(script, root, number)) for number in range(50)]
        for process in openers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in openers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [(process.communicate(timeout=50)[1], process.returncode) for process in openers] == [
            ("", 0)
        ] * 50
    storage = LocalStorage(root)
    assert sorted(map(int, storage.read("a/b/f.jsonl").split())) == list(range(50))
    assert sorted(map(int, storage.list_dir("c/d"))) == list(range(50))


# ---- rewriting


def test_b10_a_killed_rewriter_never_leaves_half_a_file(tmp_path: Path) -> None:
    """A reader parses the file at any moment, through dozens of SIGKILLs; nothing is left that grows."""
    root = tmp_path / "run"
    storage = LocalStorage(root)
    script = write_script(tmp_path, REWRITER)
    # Not through the storage: this process's first write into a folder, at the end, is to clear it.
    (root / "tree.json").write_bytes(json.dumps({"number": 0, "text": "", "end": 0}).encode())
    stop = threading.Event()
    parsed, broken = [0], list[str]()

    def parse() -> None:
        while not stop.is_set():
            try:
                tree = json.loads(storage.read("tree.json"))
                assert tree["number"] == tree["end"]
            except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
                broken.append(repr(error))
            parsed[0] += 1

    reader = threading.Thread(target=parse)
    reader.start()
    chance = random.Random(10)
    try:
        for turn in range(16):
            with start(script, root, 5_000_000 if turn < 4 else 20_000) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                time.sleep(chance.uniform(0.001, 0.08))
                process.send_signal(signal.SIGKILL)
                process.wait(30)
            assert not [name for name in storage.list_dir("") if name not in {"tree.json", "new"}]
            assert len(leftovers(root)) <= 2  # of the last kill, one in each folder
    finally:
        stop.set()
        reader.join()
    assert broken == []
    assert parsed[0] > 16
    assert json.loads(storage.read("tree.json"))["number"] > 0
    for folder in ("", "new/"):
        storage.write(f"{folder}last", b"")
    assert leftovers(root) == []


def test_b10_what_killed_writers_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    """The first write of a process into a folder removes abandoned temporary files, not those in use."""
    storage = LocalStorage(tmp_path)
    abandoned, in_use = (tmp_path / f".{name}{_replace.TEMP_SUFFIX}" for name in ("abandoned", "in use"))
    abandoned.write_bytes(b"half")
    held: list[int] = []
    if not _replace._open(held, str(tmp_path), str(in_use)):
        _replace._link(held[0], str(in_use), str(in_use))
    assert storage.list_dir("") == []
    assert (storage.find(""), storage.scan("")) == ({}, StorageListing())
    storage.write("f", b"1")
    assert not abandoned.exists()
    assert in_use.exists()
    os.close(held[0])


def test_b10_a_folder_of_leftovers_counts_as_empty(tmp_path: Path) -> None:
    """A folder that lists as empty can be removed, whatever killed writers left in it."""
    storage = LocalStorage(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f".x{_replace.TEMP_SUFFIX}").write_bytes(b"half")
    storage.remove_dir("a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("unnamed", [True, False])
def test_b10_a_file_without_a_name_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """Rewriting works the same on systems and filesystems that have only named temporary files."""
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    storage = LocalStorage(tmp_path, fsync=True)
    for content in (b"1", b"22", b"", b"x" * 5_000_000):
        storage.write("a/f", content)
        assert storage.read("a/f") == content
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageIOError, match="folder is in the way"):
        storage.write("folder", b"1")
    assert leftovers(tmp_path) == []
    assert storage.list_dir("") == ["a", "folder"]


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
@pytest.mark.parametrize("unnamed", [True, False])
def test_b10_permissions_follow_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int, unnamed: bool
) -> None:
    """Written, rewritten and appended files, and folders, have the mode that `open` and `mkdir` give."""
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    before = os.umask(umask)
    try:
        storage = LocalStorage(tmp_path / "root")
        storage.write("a/written", b"1")
        storage.write("a/rewritten", b"1")
        storage.write("a/rewritten", b"2")
        storage.append("a/appended", b"1")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "root").rglob("*")}
    file, folder = 0o666 & ~umask, 0o777 & ~umask
    assert modes == {"a": folder, "written": file, "rewritten": file, "appended": file}


# ---- links


def test_a_linked_file_is_written_through_its_link(tmp_path: Path) -> None:
    """Writing to a link replaces its target, also in another folder, and the link stays one."""
    storage = LocalStorage(tmp_path / "root")
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "f", tmp_path / "root" / "link"
    link.symlink_to(target)
    for content in (b"1", b"2"):
        storage.write("link", content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    storage.append("link", b"3")
    assert target.read_bytes() == b"23"
    assert storage.read("link") == b"23"
    storage.remove("link")
    assert target.exists()


def test_links_that_lead_nowhere_spoil_no_listing(tmp_path: Path) -> None:
    """A dangling link and one to itself are left out of scans; a folder linked into itself ends a search."""
    storage = LocalStorage(tmp_path)
    storage.write("a/f", b"1")
    (tmp_path / "dangling").symlink_to("missing")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert storage.scan("") == StorageListing({}, ["a", "b"])
    assert list(storage.find("")) == ["a/f", "b/f"]
    assert storage.stat("dangling") is None
    storage.remove("dangling")
    storage.remove("circle")
    assert storage.list_dir("") == ["a", "b"]


LISTING = f"""
import sys
from runstore import AccessDeniedError, LocalStorage, TrainingRunStore
{NOBODY}
storage = LocalStorage(sys.argv[1], mkdir=False)
assert list(storage.find("run")) == ["iteration_000001/train_logtree.json", "metrics.jsonl"]
assert list(storage.scan("run").files) == ["metrics.jsonl"]
infos = TrainingRunStore(storage, "run").list_iterations()
assert [(info.iteration, info.has_train_logtree) for info in infos] == [(1, True)]
for look in (storage.scan, storage.find, storage.list_dir):
    try:
        look("private")
    except AccessDeniedError as error:
        assert "private" in str(error)
    else:
        raise SystemExit("it was listed")
print("done")
"""


def test_what_may_not_be_seen_spoils_no_listing(common: Path) -> None:
    """A child that may not be looked at is left out; asking for that folder itself is refused."""
    (common / "private" / "inner").mkdir(parents=True)
    iteration = common / "run" / "iteration_000001"
    iteration.mkdir(parents=True)
    (iteration / "train_logtree.json").write_bytes(b"{}")
    (common / "run" / "metrics.jsonl").write_bytes(b"")
    (common / "run" / "latest").symlink_to(common / "private" / "inner")
    (iteration / "hidden").mkdir()
    for folder in (common / "private", iteration / "hidden"):
        folder.chmod(0)
    done = run(write_script(common, LISTING), common)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_folder_is_no_file_on_any_disk(tmp_path: Path, small_disk: Path) -> None:
    """Where a file is read a folder counts as missing, whatever the filesystem says of its size."""
    for root in (tmp_path, small_disk):
        storage = LocalStorage(root)
        storage.write("folder/f", b"1")
        for offset, length in ((0, None), (0, 5), (3, None), (3, 0)):
            with pytest.raises(NotFoundError):
                storage.read_range("folder", offset, length)
        assert TrainingRunStore(storage, "folder/..").read_new_metrics() == []
        with pytest.raises(NotFoundError):
            storage.read("folder")


def test_listing_iterations_looks_no_deeper_than_their_folders(tmp_path: Path) -> None:
    """What lies in folders of an iteration, or behind links there, is not walked through."""
    store = TrainingRunStore(LocalStorage(tmp_path))
    store.write_logtree(1, {})
    (tmp_path / "iteration_000001" / "everything").symlink_to("/")
    (tmp_path / "iteration_000001" / "deeper").mkdir()
    (tmp_path / "iteration_000001" / "deeper" / "train_rollout_summaries.jsonl").write_bytes(b"")
    assert store.list_iterations() == [IterationInfo(1, has_train_logtree=True)]


# ---- errors


def test_b23_a_folder_turns_read_only_and_recovers(common: Path) -> None:
    """Writing is refused by a typed error that names the path; afterwards everything goes on."""
    root = common / "root"
    (root / "own").mkdir(parents=True)
    (root / "secret").write_bytes(b"1")
    (root / "own" / "f.jsonl").write_bytes(b"1\n")
    for name, mode in (("secret", 0), ("own/f.jsonl", 0o444), ("own", 0o555), (".", 0o555)):
        (root / name).chmod(mode)
    with start(write_script(common, READ_ONLY), root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "refused\n", process.communicate()
        for path in (root, root / "own", root / "own" / "f.jsonl"):
            path.chmod(0o777)
        assert process.communicate("go\n", timeout=50) == ("done\n", "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.getuid() or mount is None:
        pytest.skip("only root can mount a small filesystem")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this system does not let us mount a filesystem")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_b23_a_small_disk_fills_up_and_recovers(small_disk: Path) -> None:
    """The error is typed and names the path, whole files stay whole, and later records are readable."""
    store = TrainingRunStore(small_disk / "run")
    storage = LocalStorage(small_disk)
    store.write_config({"a": 1})
    written = 0
    with pytest.raises(StorageFullError, match=r"metrics\.jsonl") as caught:  # noqa: PT012
        for step in range(2_000):
            store.write_metrics({"text": "x" * 1_000}, step=step)
            written = step + 1
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StorageFullError, match=r"config\.json"):
        store.write_config({"text": "x" * 1_000_000})
    with pytest.raises(StorageFullError, match="big"):
        storage.write("big", b"x" * 1_000_000)
    assert TrainingRunStore(small_disk / "run").read_config() == {"a": 1}
    assert leftovers(small_disk) == []
    # Space comes back.
    remount = ["mount", "-o", "remount,size=8m", str(small_disk)]
    subprocess.run(remount, check=True)
    store.write_metrics({"text": "after"}, step=9_999)
    store.write_config({"a": 2})
    fresh = TrainingRunStore(small_disk / "run")
    assert [record["step"] for record in fresh.read_metrics()] == [*range(written), 9_999]
    assert fresh.read_config() == {"a": 2}


def test_errors_name_path_and_cause(tmp_path: Path) -> None:
    """What the operating system reports comes out as one error of this package that is also the builtin."""
    storage = LocalStorage(tmp_path)
    storage.write("file", b"1")
    with pytest.raises(NotFoundError, match=str(tmp_path / "missing")) as missing:
        storage.read("missing")
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == str(tmp_path / "missing")
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    for write in (storage.write, storage.append, storage.append_lines):
        with pytest.raises(StorageIOError, match="parent of this path is a file") as below:
            write("file/below", b"1")
        assert isinstance(below.value.__cause__, OSError)
        with pytest.raises(StorageIOError, match="File name too long"):
            write("x" * 300, b"1")
    with pytest.raises(StorageIOError, match="parent of this path is a file"):
        LocalStorage(tmp_path / "file" / "below")
    (tmp_path / "folder").mkdir()
    for write in (storage.append, storage.append_lines, storage.write):
        with pytest.raises(StorageIOError, match="folder is in the way"):
            write("folder", b"1")
    with pytest.raises(InvalidInputError, match="cannot be the name of a file"):
        storage.write("\ud83d", b"1")
    assert AccessDeniedError.__mro__.index(PermissionError)


# ---- ranges


def test_d03_ranges_of_ten_bytes_and_of_none(tmp_path: Path) -> None:
    """At or past the end there is nothing, which is no error; negative numbers and missing files are."""
    storage = LocalStorage(tmp_path)
    storage.write("ten", b"0123456789")
    storage.write("none", b"")
    ranges: list[tuple[int, int | None]] = [(10, None), (11, None), (5, 100), (10, 5), (0, None), (5, 0)]
    ten = [storage.read_range("ten", *pair) for pair in ranges]
    assert ten == [b"", b"", b"56789", b"", b"0123456789", b""]
    assert [storage.read_range("none", *pair) for pair in ranges] == [b""] * 6
    for offset, length in ((-1, None), (0, -1), (-5, -5)):
        with pytest.raises(InvalidInputError, match="must not be negative"):
            storage.read_range("ten", offset, length)
    with pytest.raises(NotFoundError):
        storage.read_range("missing", 5, 0)


def test_d03_a_file_beyond_two_gigabytes(tmp_path: Path) -> None:
    """A range far into a large file is read; a hole costs neither disk nor time."""
    storage = LocalStorage(tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(3_000_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    assert storage.read_range("large", 3_000_000_000) == b"end"
    stat_of_large = storage.stat("large")
    assert stat_of_large is not None
    assert stat_of_large.size == 3_000_000_003
    assert len(storage.read_range("large", 2_999_000_000)) == 1_000_003
