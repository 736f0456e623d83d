"""The spool: appends on the local disk that have not reached the bucket."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import AccessDeniedError, SpoolKeptWarning, StorageFullError, StorageIOError
from runstore.remote import _spool
from runstore.remote._marks import is_stale
from runstore.remote._owners import Place, spool_folder, spooled_keys
from runstore.remote._segment import Base, Sealed, encode_appends, encode_note, joined, read_segment
from runstore.remote._spool import Spool
from runstore.storage._append_queue import Append

PLACE = Place("s3://test", "run/metrics.jsonl")

# Appends what its arguments say and dies, or stays alive while its standard input is open.
WRITER = """
import os, signal, sys
from runstore.remote._owners import Place
from runstore.remote._spool import Spool
from runstore.storage._append_queue import Append

spool = Spool(Place("s3://test", "run/metrics.jsonl"))
for text in sys.argv[2:]:
    assert spool.append_all([Append(text.encode(), True, False)]) == [None]
print("ready", flush=True)
sys.stdin.read()
if sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNSTORE_SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path / "spool"


def lines(*texts: str) -> list[Append]:
    return [Append(text.encode(), whole_lines=True, durable=False) for text in texts]


def pending(spool: Spool, last: bytes = b"") -> bytes:
    return joined(spool.load(spool.seal()), last)


def start_writer(tmp_path: Path, *args: str) -> subprocess.Popen[bytes]:
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    child = subprocess.Popen(
        [sys.executable, str(script), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    child.communicate(timeout=30)


def test_appends_come_back_in_order(folder: Path) -> None:
    """What was appended is pending, in order, until it is dropped; then no file is left."""
    spool = Spool(PLACE)
    assert not spool.pending
    assert not folder.exists()
    assert spool.append_all(lines("1\n", "2\n")) == [None, None]
    first = spool.load(spool.seal())
    spool.append_all(lines("3\n"))
    assert pending(spool) == b"1\n2\n3\n"
    spool.drop(first)
    assert pending(spool) == b"3\n"
    spool.drop(spool.load(spool.seal()))
    assert not spool.pending
    spool.close()
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_whole_lines_stay_apart(folder: Path) -> None:
    """A newline comes between whole lines and an unfinished line, in the object or in the spool."""
    spool = Spool(PLACE)
    spool.append_all([*lines("1\n"), Append(b"torn", whole_lines=False, durable=False), *lines("2\n")])
    segments = spool.load(spool.seal())
    assert joined(segments, b"") == joined(segments, b"\n") == b"1\ntorn\n2\n"
    assert joined(segments, b"x") == b"\n1\ntorn\n2\n"


def test_a_segment_never_grows_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a server is away segments stay bounded, and a commit takes a bounded number of them."""
    monkeypatch.setattr(_spool, "SEGMENT_SIZE", 100)
    spool = Spool(PLACE)
    for number in range(40):
        spool.append_all(lines(f"{number:09d}\n"))
    sealed = spool.seal()
    assert len(sealed) > 3
    assert sum(segment.size for segment in spool.load(sealed)) < 250
    texts = b""
    while sealed:
        segments = spool.load(sealed)
        texts += joined(segments, b"")
        spool.drop(segments)
        sealed = sealed[len(segments) :]
    assert texts == b"".join(b"%09d\n" % number for number in range(40))
    assert not spool.pending


@given(
    appends=st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=8),
    cut=st.integers(0, 400),
    size=st.integers(0, 10**9),
)
def test_a_torn_file_gives_whole_appends(appends: list[tuple[bytes, bool]], cut: int, size: int) -> None:
    """However a segment's file is cut off, what comes back is a beginning of what was appended."""
    data = encode_note(Base("g", size)) + encode_appends(appends)
    file = Sealed("owner", 1, "path", abandoned=True)
    whole = read_segment(file, data)
    assert [(frame.data, frame.apart) for frame in whole.frames] == appends
    assert whole.base == Base("g", size)
    torn = read_segment(file, data[:cut])
    assert torn.frames == whole.frames[: len(torn.frames)]
    assert read_segment(file, data[:cut] + b"\0" * 20).frames[: len(torn.frames)] == torn.frames


def test_a_living_owner_is_left_alone(tmp_path: Path) -> None:
    """What a process that lives has pending is its own; killed, the next one takes it, before its own."""
    child = start_writer(tmp_path, "dies", "theirs\n")
    spool = Spool(PLACE)
    spool.take_over()
    assert not spool.pending
    spool.append_all(lines("ours\n"))
    end(child)
    spool.take_over()
    assert pending(spool) == b"theirs\nours\n"
    third = Spool(PLACE)
    third.take_over()
    assert not third.pending


def test_one_of_several_takes_over(tmp_path: Path) -> None:
    """A dead owner's appends go to one process at a time, and to the next one when that dies too."""
    end(start_writer(tmp_path, "dies", "theirs\n"))
    first, second = Spool(PLACE), Spool(PLACE)
    first.take_over()
    second.take_over()
    assert (first.pending, second.pending) == (True, False)
    first.abandon()
    second.take_over()
    assert pending(second) == b"theirs\n"


def test_a_normal_end_without_delivery_leaves_it(tmp_path: Path) -> None:
    """A process that just ends leaves its spool like one that was killed."""
    end(start_writer(tmp_path, "ends", "theirs\n"))
    assert spooled_keys(PLACE.store) == [PLACE.key]
    assert spooled_keys("s3://other") == []


def test_another_machines_spool_is_left_alone(tmp_path: Path, folder: Path) -> None:
    """The folder may be a network home: only this machine's locks tell whether an owner lives."""
    end(start_writer(tmp_path, "dies", "theirs\n"))
    (lock,) = folder.rglob("*.lock")
    header = json.loads(lock.read_bytes())
    lock.write_text(json.dumps(header | {"machine": "another", "boot": "another"}))
    spool = Spool(PLACE)
    spool.take_over()
    assert not spool.pending
    lock.write_text(json.dumps(header | {"machine": "another"}))  # a container's, started anew
    spool.take_over()
    assert pending(spool) == b"theirs\n"


def test_an_empty_lock_is_cleared_away(folder: Path) -> None:
    """Of an owner that died before its first append nothing is left after the next one."""
    PLACE.folder.mkdir(parents=True)
    (PLACE.folder / "dead.lock").touch()
    spool = Spool(PLACE)
    spool.take_over()
    assert pending(spool) == b""
    assert not spool.pending
    assert list(folder.rglob("*.lock")) == []


def test_what_is_stale_is_kept_for_people() -> None:
    """A segment that must not be appended any more becomes a file with its bytes."""
    spool = Spool(PLACE)
    spool.append_all(lines("1\n", "2\n"))
    (segment,) = spool.load(spool.seal())
    kept = spool.set_aside(segment)
    assert kept.suffix == ".stale"
    assert kept.read_bytes() == b"1\n2\n"
    assert not spool.pending


def test_the_base_is_noted_in_every_segment() -> None:
    """What appends were made to is known from each segment, the newest word counting."""
    spool = Spool(PLACE)
    spool.append_all(lines("1\n"))
    spool.remember(Base("a", 5))
    spool.seal()
    spool.append_all(lines("2\n"))
    spool.remember(Base("b", 6))
    spool.seal()
    spool.remember(None)
    spool.append_all(lines("3\n"))
    assert [segment.base for segment in spool.load(spool.seal())] == [Base("a", 5), Base("b", 6), None]


def test_a_full_disk_fails_the_append_and_nothing_else() -> None:
    """An append that does not fit raises, leaves no half of it, and the next one that fits is kept."""
    spool = Spool(PLACE)
    spool.append_all(lines("1\n"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        failed, also = spool.append_all(lines("x" * 5_000 + "\n", "y\n"))
        assert type(failed) is StorageFullError
        assert "run/metrics.jsonl" in str(failed)
        assert str(spool_folder()) in str(failed)
        assert "RUNSTORE_SPOOL_DIR" in str(failed)
        assert also is failed
        assert spool.append_all(lines("2\n")) == [None]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert pending(spool) == b"1\n2\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_folder_names_itself(folder: Path) -> None:
    """Without the right to write there the error says where, and how to choose another folder."""
    folder.mkdir(mode=0o500)
    (error,) = Spool(PLACE).append_all(lines("1\n"))
    assert type(error) is AccessDeniedError
    assert "RUNSTORE_SPOOL_DIR" in str(error)


def test_a_file_in_the_folders_place_is_an_error(folder: Path) -> None:
    """The folder's name may be taken by a file: the append says so."""
    folder.write_text("")
    (error,) = Spool(PLACE).append_all(lines("1\n"))
    assert type(error) is StorageIOError
    assert "RUNSTORE_SPOOL_DIR" in str(error)


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the variable it is `runstore/spool` in the user's cache folder."""
    monkeypatch.delenv("RUNSTORE_SPOOL_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert spool_folder().is_relative_to(tmp_path)
    assert spool_folder().parts[-2:] == ("runstore", "spool")


def test_nobody_else_may_read_it(folder: Path) -> None:
    """Appends wait in files and folders of their user alone."""
    Spool(PLACE).append_all(lines("1\n"))
    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert PLACE.folder.stat().st_mode & 0o077 == 0


def test_a_folder_cleared_meanwhile_loses_nothing(folder: Path) -> None:
    """Somebody empties the cache while a run is going on: what is pending there is delivered all the same."""
    spool = Spool(PLACE)
    spool.append_all(lines("1\n"))
    shutil.rmtree(folder)
    spool.append_all(lines("2\n"))
    assert pending(spool) == b"1\n2\n"
    spool.drop(spool.load(spool.seal()))
    spool.append_all(lines("3\n"))
    assert len(list(folder.rglob("*.lock"))) == 1
    assert pending(spool) == b"3\n"


def test_a_sealed_segment_that_is_gone_is_reported(folder: Path) -> None:
    """One whose delivery was under way when it was removed is lost: a warning says so, and work goes on."""
    spool = Spool(PLACE)
    spool.append_all(lines("1\n"))
    sealed = spool.seal()
    shutil.rmtree(folder)
    with pytest.warns(SpoolKeptWarning, match=r"000001.segment was removed"):
        assert spool.load(sealed) == []
    assert not spool.pending
    spool.append_all(lines("2\n"))
    assert pending(spool) == b"2\n"


@pytest.mark.parametrize("data", [b"", b"\0" * 9, b"\xff" * 40, b'{"pid": 1}', b"\x02\x02\0\0\0\0\0\0\0[]"])
def test_garbage_in_the_folder_stops_nothing(folder: Path, data: bytes) -> None:
    """Files that no spool wrote are passed over, whatever they hold and whatever they are called."""
    PLACE.folder.mkdir(parents=True)
    for name in ("dead.lock", "dead.000001.segment", "dead.x.segment", ".lock", "x.stale", "README"):
        (PLACE.folder / name).write_bytes(data)
    (PLACE.folder / "folder.lock").mkdir()
    spool = Spool(PLACE)
    spool.take_over()
    spool.append_all(lines("1\n"))
    assert pending(spool) == b"1\n"


def test_a_base_that_no_longer_holds_is_voided() -> None:
    """The object is written whole while appends wait: they are no longer bound to what it was before."""
    spool = Spool(PLACE)
    spool.remember(Base("a", 500))
    spool.append_all(lines("1\n"))
    spool.remember(None)
    (segment,) = spool.load(spool.seal())
    abandoned = replace(segment, file=segment.file._replace(abandoned=True))
    assert not is_stale(abandoned, Base("b", 0))


def test_descriptors_are_held_only_while_something_is_pending(folder: Path) -> None:
    """However many files a process appends to, what has been delivered holds nothing."""
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir())) if open_files.exists() else 0
    spools = [Spool(Place("s3://test", f"run{number}")) for number in range(40)]
    for spool in spools:
        spool.append_all(lines("1\n"))
        spool.drop(spool.load(spool.seal()))
        assert not spool.pending
    assert list(folder.rglob("*.lock")) == []
    after = len(list(open_files.iterdir())) if before else 0
    assert after == before


def test_an_owner_keeps_its_name_and_counts_on() -> None:
    """Delivered, closed and appended to anew, a spool needs one mark in the object, not one each time."""
    spool = Spool(PLACE)
    found = []
    for _ in range(3):
        spool.append_all(lines("1\n"))
        segments = spool.load(spool.seal())
        found += [(segment.file.owner, segment.file.number) for segment in segments]
        spool.drop(segments)
        spool.close()
    assert [number for _, number in found] == [1, 2, 3]
    assert len({owner for owner, _ in found}) == 1


def test_closing_and_beginning_do_not_meet(folder: Path) -> None:
    """One process removes the empty folder while others begin to append in it: nobody fails."""

    def work(_: int) -> int:
        spool, failed = Spool(PLACE), 0
        for _ in range(150):
            (error,) = spool.append_all(lines("1\n"))
            failed += error is not None
            spool.drop(spool.load(spool.seal()))
            spool.close()
        return failed

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [0, 0, 0, 0]


def test_a_full_disk_leaves_nothing_open(folder: Path) -> None:
    """However often an append fails for want of space, no descriptor and no file is left of it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    spool = Spool(PLACE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for _ in range(20):
            (error,) = spool.append_all(lines("1\n"))
            assert type(error) is StorageFullError
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert spool.append_all(lines("2\n")) == [None]
    assert pending(spool) == b"2\n"


def test_who_looks_for_the_dead_never_keeps_the_living_out(folder: Path) -> None:
    """A lock file is seen only once it is locked: nobody takes that of a spool which is just beginning."""
    stop = threading.Event()

    def look() -> None:
        spool = Spool(PLACE)
        while not stop.is_set():
            spool.take_over()
            assert not spool.pending

    def work(_: int) -> int:
        spool, failed = Spool(PLACE), 0
        for _ in range(300):
            (error,) = spool.append_all(lines("1\n"))
            failed += error is not None
            spool.drop(spool.load(spool.seal()))
        return failed

    with ThreadPoolExecutor(4) as threads:
        looking = threads.submit(look)
        try:
            assert list(threads.map(work, range(2))) == [0, 0]
        finally:
            stop.set()
        looking.result(30)
