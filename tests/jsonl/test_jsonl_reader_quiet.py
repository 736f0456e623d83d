"""Polls of a file that nobody writes: they cost one look at it, and miss nothing."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest

from runstore import IncrementalReader
from runstore.jsonl import _reader
from tests.jsonl.helpers import Counting, append, line, lines, steps, wait_until

Change = Callable[[Path], object]


@pytest.fixture
def storage(tmp_path: Path) -> Counting:
    """One file of three records, which polls after each other found as it is."""
    append(tmp_path / "metrics.jsonl", lines(1, 4))
    return Counting(tmp_path)


def quiet_reader(storage: Counting) -> IncrementalReader:
    """A reader that knows that nothing is new, once the file's times can tell."""
    reader = IncrementalReader(storage, "metrics.jsonl")
    assert steps(reader.read()) == [1, 2, 3]
    wait_until(lambda: storage.signature("metrics.jsonl") is not None)
    assert [reader.read(), reader.read()] == [[], []]
    return reader


def test_an_idle_poll_reads_nothing(storage: Counting) -> None:
    """After two polls that found nothing, a hundred more open no file."""
    reader = quiet_reader(storage)
    before = storage.reads
    assert [reader.read() for _ in range(100)] == [[]] * 100
    assert storage.reads == before


def test_the_file_is_read_again_after_a_while(storage: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is trusted for a second only, since a network mount may answer it from memory."""
    monkeypatch.setattr(_reader, "QUIET_SECONDS", 0.0)
    reader = quiet_reader(storage)
    before = storage.reads
    assert [reader.read() for _ in range(5)] == [[]] * 5
    assert storage.reads == before + 5


def rewrite_in_place(path: Path) -> None:
    """As many bytes, another last record, and the old times put back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(lines(7, 10))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_with_a_copy(path: Path) -> None:
    """Another file with as many bytes and the same time."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(lines(7, 10))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: append(path, line(step=4)), [4]),
        (lambda path: append(path, b"\n"), []),
        (lambda path: path.write_bytes(line(step=7)), [7]),
        (lambda path: path.unlink(), []),
        (rewrite_in_place, [7, 8, 9]),
        (replace_with_a_copy, [7, 8, 9]),
    ],
    ids=["append", "newline", "shorter", "gone", "in place", "replaced"],
)
def test_whatever_changes_is_seen_at_once(storage: Counting, change: Change, found: list[int]) -> None:
    """The first poll after any change reads the file, also where size and time are the same."""
    reader = quiet_reader(storage)
    before = storage.reads
    change(storage.root / "metrics.jsonl")
    assert steps(reader.read()) == found
    assert storage.reads > before or not (storage.root / "metrics.jsonl").exists()
    append(storage.root / "metrics.jsonl", line(step=5))
    assert steps(reader.read()) == [5]


def test_a_copy_of_a_reader_looks_for_itself(storage: Counting) -> None:
    """A clock of another process means nothing here: a pickled reader begins with a read."""
    copy = pickle.loads(pickle.dumps(quiet_reader(storage)))
    before = copy._storage.reads
    assert copy.read() == []
    assert copy._storage.reads == before + 1


@pytest.mark.anyio
async def test_an_awaited_poll_never_looks_on_the_loop(storage: Counting) -> None:
    """The look is a blocking call: an event loop gets the read in a thread, as ever."""
    reader = await anyio.to_thread.run_sync(quiet_reader, storage)
    before = storage.reads
    assert await reader.aread() == []
    assert storage.reads == before + 1
