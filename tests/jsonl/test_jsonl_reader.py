"""The incremental reader: each record once, however its bytes arrive and whatever becomes of the file."""

import asyncio
import itertools
import logging
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import (
    AsyncStorage,
    IncrementalReader,
    InvalidInputError,
    LocalStorage,
    RunStoreError,
    TrainingRunStore,
)
from runstore.jsonl import _reader_state, _scan
from tests.jsonl import reference, strategies
from tests.jsonl.helpers import Counting, Failing, append, line, lines, replace, steps
from tests.jsonl.reference import same


def check_against_rules(reader: IncrementalReader, records: list[dict[str, Any]], data: bytes) -> None:
    expected = reference.read(data)
    assert same(records, expected.records)
    assert same(reader.records, expected.records)
    assert reader.total_read == len(expected.records)
    assert reader.known_keys == {key for record in expected.records for key in record} - {"step"}
    found = reader.malformed
    assert [(bad.line - 1, bad.offset) for bad in found.latest] == expected.problems[-100:]
    assert found.count == len(expected.problems)
    assert found.replaced == expected.replaced


@given(strategies.split_files(), st.integers(1, 200), st.integers(1, 200), st.sets(st.integers(0, 9)))
def test_polls_give_what_one_read_gives(
    parts: list[bytes], piece_size: int, fetch_size: int, pickled: set[int]
) -> None:
    """Bytes in any pieces, a poll after each, pickled in between: the records and places of the whole."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "PIECE_SIZE", piece_size)
        patch.setattr(_scan, "MOST_WORK", 10 * piece_size)
        patch.setattr(AsyncStorage, "fetch_size", fetch_size)
        path = Path(root) / "m.jsonl"
        reader = IncrementalReader(root, "m.jsonl")
        records = []
        for index, part in enumerate(parts):
            append(path, part)
            records += reader.read()
            if index in pickled:
                reader = pickle.loads(pickle.dumps(reader))
        check_against_rules(reader, records, b"".join(parts))
        whole = IncrementalReader(root, "m.jsonl")
        check_against_rules(whole, whole.read(), b"".join(parts))
        assert whole.cursor == reader.cursor
        assert reader.read() == []


@pytest.mark.anyio
@given(strategies.split_files(), st.integers(1, 200), st.integers(1, 200), st.sets(st.integers(0, 9)))
async def test_awaited_polls_give_what_one_read_gives(
    parts: list[bytes], piece_size: int, fetch_size: int, pickled: set[int]
) -> None:
    """The async twin, some of its polls done by the sync one."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "PIECE_SIZE", piece_size)
        patch.setattr(_scan, "MOST_WORK", 10 * piece_size)
        patch.setattr(AsyncStorage, "fetch_size", fetch_size)
        path = Path(root) / "m.jsonl"
        reader = IncrementalReader(root, "m.jsonl")
        records = []
        for index, part in enumerate(parts):
            append(path, part)
            records += reader.read() if index in pickled else await reader.aread()
        check_against_rules(reader, records, b"".join(parts))


@pytest.mark.anyio
@pytest.mark.usefixtures("no_stretch")
@pytest.mark.parametrize("odd", [b"\n", b"[1]\n", b"text\n", b'{"a":1}{"b":2}\n', b'{"a":"\xff"}\n'])
async def test_odd_lines_do_not_hold_a_loop(tmp_path: Path, odd: bytes) -> None:
    """Lines that take long give the loop its turns however short they are, and are all looked at."""
    data = b'{"first":1}\n' + odd * ((_scan.PIECE_SIZE - 100) // len(odd)) + b'{"last":1}\n'
    assert len(data) < _scan.PIECE_SIZE
    (tmp_path / "m.jsonl").write_bytes(data)
    reader = IncrementalReader(tmp_path, "m.jsonl", max_records=200_000)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.ensure_future(take_turns())
    records = await reader.aread()
    others.cancel()
    assert records[0] == {"first": 1}
    assert records[-1] == {"last": 1}
    expected = reference.read(data)
    assert (len(records), reader.malformed.count) == (len(expected.records), len(expected.problems))
    assert turns > len(data) // _scan.MOST_WORK + 10


@pytest.mark.parametrize(
    ("torn", "kept", "offset"),
    [
        (b'{"step":1,"loss":0.5}\n{"step":2,"lo', [1, 3], 22),
        ('{"step":1,"loss":0.5}\n{"step":2,"name":"☃'.encode()[:-1], [1, 3], 22),
        (b'{"step":1,"loss":0.5}\n{"step":2,"loss":0.25}', [1, 2, 3], None),
        (b'{"step":1,"loss":0.5}\n{"step":2,"loss":0.25} {"st', [1, 2, 3], 45),
    ],
    ids=["in a key", "in a character", "only the newline", "after a record"],
)
@pytest.mark.parametrize("polled", [False, True])
def test_c01_a_torn_line_costs_only_itself(
    tmp_path: Path, torn: bytes, kept: list[int], offset: int | None, polled: bool
) -> None:
    """What follows a crashed writer's unfinished line is read, and the piece reported with its place."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(torn)
    store = TrainingRunStore(tmp_path)
    reader = IncrementalReader(tmp_path.as_uri(), "metrics.jsonl")
    before = reader.read() if polled else []
    store.write_metrics({"loss": 0.1}, step=3)
    assert steps(before + reader.read()) == kept
    assert steps(store.read_metrics()) == kept
    places = [(bad.line, bad.offset) for bad in reader.malformed.latest]
    assert places == ([] if offset is None else [(2, offset)])


@pytest.mark.parametrize("good", [0, 5])
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("newline_alone", [False, True])
def test_c03_one_record_in_three_pieces(
    tmp_path: Path, good: int, pickled: bool, newline_alone: bool
) -> None:
    """A poll after each piece gives nothing until the record is complete, then exactly it, once."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, good))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    assert steps(reader.read()) == list(range(good))
    data = '{"step": 9, "name": "☃", "loss": 0.5}\n'.encode()
    in_key, in_character = data.index(b"na") + 1, data.index("☃".encode()) + 1
    edges = [0, in_key, in_character, len(data) - newline_alone]
    got: list[dict[str, Any]] = []
    for start, end in itertools.pairwise(edges):
        assert got == []
        append(path, data[start:end])
        got = reader.read()
        if pickled:
            reader = pickle.loads(pickle.dumps(reader))
    assert got == [{"step": 9, "name": "☃", "loss": 0.5}]
    append(path, data[edges[-1] :])
    assert reader.read() == []
    append(path, lines(10, 11))
    assert steps(reader.read()) == [10]
    assert reader.malformed.count == 0


@pytest.mark.parametrize("tail", [b"", b'{"step":10'], ids=["whole lines", "with an unfinished line"])
@pytest.mark.parametrize("case", ["shorter", "equal size", "longer", "deleted", "same start"])
def test_c06_a_replaced_file_is_read_anew(tmp_path: Path, case: str, tail: bytes) -> None:
    """Another file in the old one's place is read from its start, nothing mixed; a longer version goes on."""
    path = tmp_path / "m.jsonl"
    old = lines(0, 10) + tail
    path.write_bytes(old)
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    assert steps(reader.read()) == list(range(10))
    if case == "deleted":
        path.unlink()
        assert reader.read() == []
        assert reader.records == []
    new = {
        "shorter": lines(100, 103),
        "equal size": b'{"step":99' + b" " * (len(old) - 12) + b"}\n",
        "longer": lines(100, 130),
        "deleted": lines(100, 110),
        "same start": old.removesuffix(tail) + lines(10, 13),
    }[case]
    assert case != "equal size" or len(new) == len(old)
    replace(path, new)
    found = steps(reader.read())
    everything = steps(reference.read(new).records)
    if case == "same start":
        assert found == ([10, 11, 12] if not tail else everything)
    else:
        assert found == everything
    assert steps(reader.records) == everything
    append(path, lines(500, 501))
    assert steps(reader.read()) == [500]


def test_a_file_replaced_between_two_fetches_is_never_mixed(tmp_path: Path) -> None:
    """A reader in the middle of a large file that is replaced then keeps only the new file's records."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 40_000, kind="old"))

    class Replacing(LocalStorage):
        fetches = 0

        async def aread_range(self, name: str, offset: int, length: int | None = None) -> bytes:
            self.fetches += 1
            if self.fetches == 2:
                replace(path, lines(0, 40_000, kind="new"))
            return await super().aread_range(name, offset, length)

    reader = IncrementalReader(Replacing(tmp_path), "m.jsonl")
    handed_out = reader.read()
    assert [record["kind"] for record in reader.records] == ["new"] * 40_000
    assert handed_out[-40_000:] == reader.records
    assert steps(handed_out[:-40_000]) == list(range(len(handed_out) - 40_000))


LONG_LINES = """
import asyncio, os, resource, sys
from runstore import IncrementalReader, LocalStorage

MB = 1024 * 1024
root, case, colour = sys.argv[1:]
path = os.path.join(root, "m.jsonl")

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def append(*parts):
    with open(path, "ab", buffering=0) as file:
        for part in parts:
            file.write(part)

if case == "large file":
    block = b"".join(b'{"step":%d,"x":"%s"}\\n' % (i, b"y" * 80) for i in range(10_000))
    append(*[block] * 200, b'{"step":"last"}\\n')
    reader = IncrementalReader(LocalStorage(root), "m.jsonl", max_records=100)
else:
    append(b'{"step":1}\\n' * 10, b'{"long":"', *[b"x" * MB] * 50)
    if case == "in between":
        append(b'"}\\n', b'{"step":2}\\n' * 10)
    reader = IncrementalReader(LocalStorage(root), "m.jsonl")

def read():
    return asyncio.run(reader.aread()) if colour == "async" else reader.read()

before = peak()
if case == "large file":
    if colour == "async":
        asyncio.run(reader.aupdate())
    else:
        reader.update()
    assert reader.records[-1] == {"step": "last"} and len(reader.records) == 100
    assert reader.total_read == 2_000_001
elif case == "in between":
    assert [len(record.get("long", "")) for record in read()] == [0] * 10 + [50 * MB] + [0] * 10
else:
    assert len(read()) == 10
    assert read() == []
    append(b"z" * MB)
    assert read() == []
    append(b'"}')
    assert [len(record["long"]) for record in read()] == [51 * MB]
    append(b'\\n{"step":3}\\n')
    assert read() == [{"step": 3}]
assert reader.malformed.count == 0
print((peak() - before) // MB)
"""


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("case", "megabytes"), [("in between", 5 * 50), ("completed later", 5 * 50), ("large file", 32)]
)
def test_c11_memory_is_about_one_line(tmp_path: Path, case: str, megabytes: int, colour: str) -> None:
    """A 50 MB line and an unfinished one are read at a few times their size, a large file at none of its."""
    script = tmp_path / "script.py"
    script.write_text(LONG_LINES)
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, script, root, case, colour], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < megabytes


def test_c13_damaged_lines_are_skipped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of 1,000 lines, 3 damaged and 1 torn, 996 come; 3 are named, the torn one waits; one warning."""
    whole = [line(step=step) for step in range(1000)]
    whole[200] = whole[200].replace(b"}", b"")
    whole[300] = b"\xff\xfe garbage\n"
    whole[400] = b"[1, 2]\n"
    torn = whole[999][:-3]
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"".join(whole[:999]) + torn)
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    with caplog.at_level(logging.DEBUG, logger="runstore"):
        records = [record for _ in range(5) for record in reader.read()]
        assert steps(records) == [step for step in range(999) if step not in {200, 300, 400}]
        append(path, b"more garbage\n")
        assert reader.read() == []
    offsets = [len(b"".join(whole[:index])) for index in (200, 300, 400, 999)]
    places = [(201, offsets[0]), (301, offsets[1]), (401, offsets[2]), (1000, offsets[3])]
    assert [(bad.line, bad.offset) for bad in reader.malformed.latest] == places
    assert reader.malformed.count == 4
    assert len(caplog.records) == 1
    assert path.as_uri() in caplog.text
    assert "line 201" in caplog.text


def test_only_the_latest_problems_are_kept_and_all_counted(tmp_path: Path) -> None:
    """A file of garbage takes no more memory than a hundred places."""
    (tmp_path / "m.jsonl").write_bytes(b"garbage\n" * 20_000)
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    assert reader.read() == []
    assert reader.malformed.count == 20_000
    assert [bad.line for bad in reader.malformed.latest] == list(range(19_901, 20_001))


def test_a_poll_fetches_only_what_is_new(tmp_path: Path) -> None:
    """A poll is one storage operation and fetches the new bytes and a kilobyte before them."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 20_000))
    storage = Counting(tmp_path)
    reader = IncrementalReader(storage, "m.jsonl")
    reader.read()
    for new in (b"", line(step=1), b'{"step":', b"2}", b"\n"):
        append(path, new)
        storage.reads = storage.read_bytes = 0
        reader.read()
        assert storage.reads == 1
        assert storage.read_bytes <= 1024 + len(new)


def test_the_buffer_keeps_the_newest_records(tmp_path: Path) -> None:
    """At most `max_records` are kept, the oldest dropped first, while `read` returns all that is new."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 30_000))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl", max_records=1000)
    assert steps(reader.read()) == list(range(30_000))
    assert steps(reader.records) == list(range(29_000, 30_000))
    for step in range(30_000, 32_500):
        append(path, line(step=step))
        assert steps(reader.read()) == [step]
    assert steps(reader.records) == list(range(31_500, 32_500))
    assert reader.total_read == 32_500
    assert sum(len(block.newest_first) for block in reader._state.blocks) < 1000 + 8 * 256
    assert reader.snapshot().records == reader.records


def test_the_buffer_can_be_bounded_in_bytes(tmp_path: Path) -> None:
    """`max_bytes` bounds the bytes of the file whose records are kept, down to one block."""
    path = tmp_path / "m.jsonl"
    text = "x" * 100_000
    path.write_bytes(lines(0, 50, text=text))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl", max_bytes=1_500_000)
    reader.update()
    kept = steps(reader.records)
    assert kept == list(range(50 - len(kept), 50))
    assert 10 <= len(kept) <= 15
    assert reader.total_read == 50


def test_update_hands_nothing_out_and_loses_nothing(tmp_path: Path) -> None:
    """After `update`, the records are in the buffer, and `read` gives only what comes then."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 5))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    reader.update()
    assert steps(reader.records) == list(range(5))
    append(path, lines(5, 7))
    assert steps(reader.read()) == [5, 6]


def test_has_data(tmp_path: Path) -> None:
    """True when records are in memory or the file has bytes, whatever they are."""
    path = tmp_path / "m.jsonl"
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    assert not reader.has_data()
    path.write_bytes(b"")
    assert not reader.has_data()
    path.write_bytes(lines(0, 1))
    assert reader.has_data()
    reader.read()
    path.unlink()
    assert reader.has_data()
    reader.read()
    assert not reader.has_data()


def test_what_a_reader_gives_is_a_copy(tmp_path: Path) -> None:
    """Changing a returned list or set changes nothing in the reader."""
    (tmp_path / "m.jsonl").write_bytes(lines(0, 3, loss=1))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    reader.read().clear()
    reader.records.clear()
    reader.known_keys.clear()
    assert steps(reader.records) == [0, 1, 2]
    assert reader.known_keys == {"loss"}


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "replace", "pickle", "ask"]), st.lists(st.sampled_from("abcd")))
    ),
    st.integers(1, 6),
    st.integers(1, 60),
)
def test_every_key_is_known_whatever_left_the_buffer(
    actions: list[tuple[str, list[str]]], kept: int, piece_size: int
) -> None:
    """Asked for at any time: the keys of all records read, of dropped ones and of replaced files too."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "PIECE_SIZE", piece_size)
        patch.setattr(_scan, "MOST_WORK", 10 * piece_size)
        patch.setattr(_reader_state, "SMALL_BLOCK", 3)
        path = Path(root) / "m.jsonl"
        reader = IncrementalReader(root, "m.jsonl", kept)
        read: list[dict[str, Any]] = []
        for number, (action, keys) in enumerate(actions):
            data = b"".join(line(**{"step": number, key: number}) for key in keys)
            if action == "replace":
                replace(path, data)
            else:
                append(path, data)
            if action == "pickle":
                reader = pickle.loads(pickle.dumps(reader))
            read += reader.read()
            assert reader.records == read[len(read) - len(reader.records) :]
            if action == "ask":
                assert reader.known_keys == {key for record in read for key in record} - {"step"}
        assert reader.known_keys == {key for record in read for key in record} - {"step"}


def test_a_bound_below_one_is_refused(tmp_path: Path) -> None:
    """A buffer of no records is an error at once."""
    with pytest.raises(InvalidInputError):
        IncrementalReader(tmp_path.as_uri(), "m.jsonl", max_records=0)


class Late(Failing):
    """Fails from the sixth operation on."""

    after = 5

    def fail_once_more(self) -> None:
        self.after -= 1
        if self.after < 0:
            super().fail_once_more()


@pytest.mark.parametrize("failures", [1, 2])
def test_an_error_half_way_loses_nothing(
    tmp_path: Path, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before a failure comes with the next read, in order, once."""
    monkeypatch.setattr(AsyncStorage, "fetch_size", 1000)
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 500))
    storage = Late(tmp_path)
    storage.failures = failures
    reader = IncrementalReader(storage, "m.jsonl")
    for _ in range(failures):
        with pytest.raises(RunStoreError, match="made to fail"):
            reader.read()
    assert reader.total_read > 50
    pickled = pickle.loads(pickle.dumps(reader))
    assert steps(reader.read()) == list(range(500))
    assert steps(pickled.read()) == list(range(500))


def test_a_folder_without_the_right_to_read_is_an_error_not_an_empty_file(tmp_path: Path) -> None:
    """A path whose parent is no folder counts as missing; one that cannot be looked at raises."""
    (tmp_path / "file").write_bytes(b"x")
    assert IncrementalReader(tmp_path.as_uri(), "file/m.jsonl").read() == []
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(RunStoreError):
        IncrementalReader(tmp_path.as_uri(), "loop").read()


@pytest.mark.anyio
@pytest.mark.usefixtures("no_stretch")
async def test_a_loop_gets_its_turn_while_a_large_file_is_read(tmp_path: Path) -> None:
    """Other tasks may run between pieces of 128 KiB, not only at the end."""
    (tmp_path / "m.jsonl").write_bytes(lines(0, 50_000, text="x" * 60))
    reader = IncrementalReader(tmp_path.as_uri(), "m.jsonl")
    turns = 0
    reading = asyncio.ensure_future(reader.aread())
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(reading.result()) == 50_000
    assert turns > 30


def test_a_batch_is_used_like_its_records(tmp_path: Path) -> None:
    """It is counted, iterated, indexed and cut."""
    (tmp_path / "m.jsonl").write_bytes(lines(0, 5))
    reader = IncrementalReader(tmp_path, "m.jsonl")
    reader.update()
    batch = reader.snapshot()
    assert (len(batch), batch[0]["step"], batch[-1]["step"]) == (5, 0, 4)
    assert steps(batch[1:3]) == [1, 2]
    assert list(batch) == batch.records
