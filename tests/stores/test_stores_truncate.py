"""`truncate_metrics`: what a resume drops, and what it must never touch."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import IncrementalReader, InvalidInputError, TrainingRunStore
from tests.stores.helpers import Call, RunFolder

METRICS = "metrics.jsonl"


def record_line(step: int) -> bytes:
    return b'{"step": %d, "loss": 0.5}\n' % step


@pytest.mark.anyio
async def test_rows_from_the_step_on_go_after_a_copy(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """Rows of `from_step` and later go, the file is copied unchanged before, the number is returned."""
    before = b"".join(record_line(step) for step in range(10))
    run.put(METRICS, before)
    assert await call(store.atruncate_metrics, 7) == 3
    assert run.files() == {
        METRICS: b"".join(record_line(step) for step in range(7)),
        "metrics.jsonl.pre_resume_000007": before,
    }
    assert [record["step"] for record in await call(store.aread_metrics)] == list(range(7))


@pytest.mark.anyio
async def test_a_copy_is_never_overwritten(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A second and a third copy for the same step get `.1` and `.2`; each holds its own state."""
    states = []
    for attempt in range(3):
        run.put(METRICS, record_line(1) + b'{"attempt": %d}\n' % attempt + record_line(5))
        states.append(run.get(METRICS))
        assert await call(store.atruncate_metrics, 5) == 1
    files = run.files()
    assert sorted(files) == [METRICS, *(f"{METRICS}.pre_resume_000005{end}" for end in ("", ".1", ".2"))]
    assert [files[f"{METRICS}.pre_resume_000005{end}"] for end in ("", ".1", ".2")] == states


@pytest.mark.anyio
async def test_steps_of_more_than_six_digits(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Six digits are a padding, not a limit."""
    run.put(METRICS, record_line(1) + record_line(1_234_567))
    assert await call(store.atruncate_metrics, 1_234_567) == 1
    assert f"{METRICS}.pre_resume_1234567" in run.files()


@pytest.mark.anyio
@pytest.mark.parametrize("data", [b"", record_line(1), b'{"loss": 1}\n{"step": "9"}\ntorn {"step": 9'])
async def test_with_nothing_to_drop_nothing_is_copied(
    run: RunFolder, store: TrainingRunStore, call: Call, data: bytes
) -> None:
    """No row to drop: 0 is returned, nothing is copied, the file is not written."""
    path = run.put(METRICS, data)
    stat = path.stat()
    assert await call(store.atruncate_metrics, 5) == 0
    assert run.files() == {METRICS: data}
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)


@pytest.mark.anyio
async def test_a_step_that_is_none_is_refused(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A negative step would drop everything, a float none of what was meant: nothing is touched."""
    run.put(METRICS, record_line(1))
    with pytest.raises(InvalidInputError, match="step -1"):
        await call(store.atruncate_metrics, -1)
    with pytest.raises(TypeError):
        await call(store.atruncate_metrics, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step True"):
        await call(store.atruncate_metrics, True)  # noqa: FBT003  what is tried
    assert run.files() == {METRICS: record_line(1)}


@pytest.mark.anyio
async def test_without_a_file_nothing_happens(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A run without metrics drops nothing, and nothing is created."""
    assert await call(store.atruncate_metrics, 0) == 0
    assert not run.exists()


@pytest.mark.anyio
async def test_what_has_no_integer_step_stays_byte_for_byte(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """Rows without an integer step and unreadable lines stay as they are, wherever they are."""
    kept = [
        b'{"loss": 0.5}\n',
        b'{"step": 7.0, "loss": 0.5}\n',
        b'{"step": true}\n',
        b'{"step": "7"}\n',
        b'{"step": null}\n',
        b'{"step": NaN}\n',
        b'{"step": [7]}\n',
        b'{"nested": {"step": 7}}\n',
        b'{"step": 4, "text": "\\u2028 \xe2\x80\xa8 \xc2\x85 {\\"step\\": 9}"}\n',
        b'\xef\xbb\xbf{"step": 3}\n',
        b'{"step": 2}\r\n',
        b"\r\n",
        b"\n",
        b"  \t \n",
        b"<<<<<<< HEAD\n",
        b'{"step": 7, "lo\n',
        b'[{"step": 7}]\n',
        b"7\n",
        b"\xff\xfe\x00\n",
        b'{"step": 1}{"step": 2}\n',
    ]
    dropped = [
        b'{"step": 7}\n',
        b'{"step": 8, "loss": NaN}\n',
        b'{"step": 9}\r\n',
        b'  {"loss": 1, "step": 10} \t\n',
        b'\xef\xbb\xbf{"step": 11}\n',
        b'{"step": 12, "name": "caf\xe9"}\n',
        b'{"step": 13}{"step": 14}\n',
    ]
    mixed = [line for pair in zip(kept, dropped * 3, strict=False) for line in pair]
    run.put(METRICS, b"".join(mixed))
    count = sum(line.count(b'"step"') for line in mixed if line in dropped)
    assert await call(store.atruncate_metrics, 7) == count
    assert run.get(METRICS) == b"".join(kept)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "case",
    [
        (b'{"step": 1}{"step": 9}\n', b'{"step": 1}\n', 1),
        (b'{"step": 9}{"step": 1}\n', b'{"step": 1}\n', 1),
        (b'{"step": 9}{"step": 8}\n', b"", 2),
        (b'{"step": 1} {"step": 9}{"loss": 2}\n', b'{"step": 1} {"loss": 2}\n', 1),
        (b'{"step": 9}{"step": 1, "lo\n', b'{"step": 1, "lo\n', 1),
        (b'{"step": 9} garbage\n', b"garbage\n", 1),
        (b'{"step": 1}{"step": 9}', b'{"step": 1}', 1),
    ],
)
async def test_of_a_line_with_several_objects_only_those_go(
    run: RunFolder, store: TrainingRunStore, call: Call, case: tuple[bytes, bytes, int]
) -> None:
    """Where a crash joined two records in one line, the other one and what is unreadable stay."""
    line, left, count = case
    run.put(METRICS, record_line(0) + line)
    assert await call(store.atruncate_metrics, 7) == count
    assert run.get(METRICS) == record_line(0) + left


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tail", "left"),
    [
        (b'{"step": 2}', b'{"step": 2}'),
        (b'{"step": 9}', b""),
        (b'{"step": 9, "lo', b'{"step": 9, "lo'),
        (b'{"step": 9}\r', b""),
    ],
)
async def test_a_file_without_its_last_newline(
    run: RunFolder, store: TrainingRunStore, call: Call, tail: bytes, left: bytes
) -> None:
    """A last row that only lacks its newline is a row; a torn one stays as it is; none is added."""
    run.put(METRICS, record_line(1) + record_line(8) + tail)
    assert await call(store.atruncate_metrics, 7) == 1 + (left == b"")
    assert run.get(METRICS) == record_line(1) + left


@pytest.mark.anyio
async def test_the_run_goes_on_after_it(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Truncate, then write on: this store, another one and a follower from the start see the new run."""
    for step in range(10):
        await call(store.awrite_metrics, {"run": "old"}, step)
    other = TrainingRunStore(run)
    await call(store.aread_metrics)
    await call(other.aread_metrics)
    await call(store.atruncate_metrics, 5)
    for step in range(5, 12):
        await call(store.awrite_metrics, {"run": "new"}, step)
    expected = [{"step": step, "run": "old" if step < 5 else "new"} for step in range(12)]
    assert await call(store.aread_metrics) == expected
    assert await call(other.aread_metrics) == expected
    assert await call(store.aread_metrics_by_step) == expected


@pytest.mark.anyio
async def test_what_was_read_before_is_read_anew(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Nothing of what was dropped stays in the buffer, though the new rows end in the very same bytes."""

    def lines(middle: bytes) -> bytes:
        return record_line(0) + b'{"step": 5, "run": "%b"}\n' % middle + record_line(6) * 100

    run.put(METRICS, lines(b"old"))
    await call(store.aread_metrics)
    assert await call(store.atruncate_metrics, 5) == 101
    await call(store.storage.aappend, METRICS, lines(b"new")[len(record_line(0)) :])
    assert (await call(store.aread_new_metrics))[:2] == [
        {"step": 0, "loss": 0.5},
        {"step": 5, "run": "new"},
    ]
    assert len(await call(store.aread_metrics)) == 102


@pytest.mark.anyio
async def test_a_large_file(run: RunFolder, store: TrainingRunStore) -> None:
    """10 MB with a long line in the middle: every byte before and after the dropped rows stays."""
    long = b'{"step": 3, "text": "%b"}\n' % (b"x" * 5_000_000)
    low, high = record_line(1) * 100_000, record_line(9) * 20_000
    run.put(METRICS, low + high + long + high + low)
    assert await store.atruncate_metrics(7) == 40_000
    assert run.get(METRICS) == low + long + low


steps = st.one_of(
    st.integers(0, 20), st.sampled_from([True, False, None, "9", 9.0, 9.5, [9], {"step": 9}, float("nan")])
)
records = st.one_of(
    st.builds(lambda step, text: {"step": step, "text": text}, steps, st.text(max_size=5)),
    st.builds(lambda text: {"text": text}, st.text(max_size=5)),
)
texts = st.builds(lambda record, ascii_: json.dumps(record, ensure_ascii=ascii_), records, st.booleans())
encoded = texts.map(lambda text: text.encode(errors="surrogatepass").replace(b"\n", b""))
junk = st.binary(max_size=8).map(lambda data: b"#" + data.replace(b"\n", b"").replace(b"{", b""))
ends = st.sampled_from([b"\n", b"\r\n", b" \n"])


def steps_of(line: bytes) -> list[Any]:
    """By Python's own json: the steps of the objects at the start of a line, `None` for no integer."""
    text = line.decode(errors="surrogateescape").strip(" \r\n\t\0")
    found = []
    decoder = json.JSONDecoder()
    while text.startswith("{"):
        try:
            record, end = decoder.raw_decode(text)
        except ValueError:
            break
        step = record.get("step")
        found.append(step if type(step) is int else None)
        text = text[end:].lstrip(" \r\t\0")
    return found


@given(st.lists(st.tuples(st.one_of(encoded, junk), ends)), st.booleans(), st.integers(0, 20))
def test_truncation_against_a_plain_reference(
    lines: list[tuple[bytes, bytes]], ended: bool, from_step: int
) -> None:
    """For any file of one object a line: exactly the lines with an integer step from there on are gone."""
    whole = [body + end for body, end in lines]
    if whole and not ended:
        whole[-1] = lines[-1][0]
    data = b"".join(whole)
    kept = [line for line in whole if not any(s is not None and s >= from_step for s in steps_of(line))]
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.put(METRICS, data)
        store = TrainingRunStore(run)
        assert store.truncate_metrics(from_step) == len(whole) - len(kept)
        copies = {} if kept == whole else {f"{METRICS}.pre_resume_{from_step:06d}": data}
        assert run.files() == {METRICS: b"".join(kept)} | copies


@given(
    st.lists(st.tuples(st.lists(encoded, max_size=3), st.one_of(st.just(b""), junk), ends)),
    st.booleans(),
    st.integers(0, 20),
)
def test_truncation_against_what_is_read(
    lines: list[tuple[list[bytes], bytes, bytes]], ended: bool, from_step: int
) -> None:
    """For any file whatever: what is read after it is what was read before, without the dropped rows."""
    data = b"".join(b"".join(objects) + rest + end for objects, rest, end in lines)
    data = data if ended else data.removesuffix(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.put(METRICS, data)
        before = IncrementalReader(folder, METRICS)
        after = IncrementalReader(folder, METRICS)
        expected = [
            record
            for record in before.read()
            if type(record.get("step")) is not int or record["step"] < from_step
        ]
        dropped = TrainingRunStore(run).truncate_metrics(from_step)
        assert repr(after.read()) == repr(expected)
        assert before.total_read - dropped == len(expected)
        assert after.malformed.count == before.malformed.count


KILLER = '''
import os, random, signal, sys, time
from pathlib import Path
from runstore import LocalStorage, TrainingRunStore


class Dying(LocalStorage):
    """Dies before the write of that number, or long after."""

    writes = 0

    async def awrite(self, path, data):
        if self.writes == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.writes += 1
        await super().awrite(path, data)


root, seed = Path(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
old = b"".join(b'{"step": %d, "loss": 0.123456789}\\n' % step for step in range(20_000))
new = b"".join(old.splitlines(keepends=True)[:10_000])
copy_name = "metrics.jsonl.pre_resume_010000"
storage = Dying(root)
store = TrainingRunStore(storage)
outcomes = {"old": 0, "copied": 0, "new": 0, "killed": 0}


def attempt(wait, dies_at=None):
    storage.writes, storage.dies_at = 0, dies_at
    for path in root.iterdir():
        path.unlink()
    (root / "metrics.jsonl").write_bytes(old)
    child = os.fork()
    if child == 0:
        try:
            store.truncate_metrics(10_000)
        finally:
            os._exit(0)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    outcomes["killed"] += os.WIFSIGNALED(status)
    assert set(store.storage.list_dir("")) <= {"metrics.jsonl", copy_name}, os.listdir(root)
    now = (root / "metrics.jsonl").read_bytes()
    copy = root / copy_name
    assert not copy.exists() or copy.read_bytes() == old, "the copy is not whole"
    assert now == old or (now == new and copy.exists()), (len(now), copy.exists())
    outcomes["new" if now == new else "copied" if copy.exists() else "old"] += 1


for dies_at, outcome in ((0, "old"), (1, "copied"), (2, "new")):
    before = outcomes[outcome]
    attempt(None, dies_at)
    assert outcomes[outcome] == before + 1, (dies_at, outcomes)
(root / "metrics.jsonl").write_bytes(old)
storage.dies_at = None
start = time.perf_counter()
assert store.truncate_metrics(10_000) == 10_000
duration = time.perf_counter() - start
for _ in range(50):
    attempt(random.uniform(0, 1.5 * duration))
print(outcomes)
assert outcomes["killed"] and outcomes["old"] + outcomes["copied"], outcomes
'''


def test_killed_half_way_the_file_is_old_or_new(tmp_path: Path) -> None:
    """After kill -9 at a random moment the file is the old or the new one, and its copy is whole by then."""
    script = tmp_path / "killer.py"
    script.write_text(KILLER)
    root = tmp_path / "run"
    root.mkdir()
    subprocess.run([sys.executable, script, root, "7"], check=True, timeout=50)
