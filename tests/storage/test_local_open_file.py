"""A local file held open for a read from end to end: the right bytes, few hops, nothing left open."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import IncrementalReader, LocalStorage, NotFoundError, TrainingRunStore
from runstore.storage import _bridge
from tests.jsonl.helpers import lines, replace, steps

DATA = bytes(range(256)) * 40
RANGES = st.lists(st.tuples(st.integers(0, 11_000), st.integers(1, 11_000)), min_size=1, max_size=6)
DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture(params=["disk", "memory file system", "not in memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where reads that never wait succeed, where the file system refuses them, where nothing is cached."""
    if request.param != "memory file system":
        yield tmp_path
        return
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("the system has no memory file system")
    folder = shared / f"runstore-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.fixture
def forget(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Have the system forget what it has of a file in memory, in the case that is about that."""
    wanted = "not in memory" in request.node.name

    def forget(path: Path) -> None:
        if wanted and hasattr(os, "posix_fadvise"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return forget


@pytest.mark.anyio
async def test_ranges_are_those_of_the_file(folder: Path, forget: Callable[[Path], None]) -> None:
    """On a loop any ranges in any order are the file's, whatever the system has of it in memory."""
    (folder / "f").write_bytes(DATA * 100)
    forget(folder / "f")
    file = LocalStorage(folder).open_file("f")
    assert file is not None
    for offset, length in [(0, 10), (1_000_000, 30_000), (5, 500_000), (1_023_990, 20), (1_024_000, 1)]:
        assert await file.aread_range(offset, length) == (DATA * 100)[offset : offset + length]
    await file.aclose()
    await file.aclose()


@given(ranges=RANGES)
def test_both_colours_read_the_same(
    ranges: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A range is the same bytes for a sync caller and an awaiting one, to the end of the file and beyond."""
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "f").write_bytes(DATA)
    storage = LocalStorage(folder)

    async def read() -> list[bytes]:
        file = storage.open_file("f")
        assert file is not None
        try:
            return [await file.aread_range(offset, length) for offset, length in ranges]
        finally:
            await file.aclose()

    assert asyncio.run(read()) == storage.run_sync(read) == [DATA[at : at + size] for at, size in ranges]


@pytest.mark.anyio
async def test_a_missing_file(tmp_path: Path) -> None:
    """Opening asks nothing; the first read of a missing file, or of a folder, raises NotFoundError."""
    (tmp_path / "folder").mkdir()
    for name in ("missing", "folder"):
        file = LocalStorage(tmp_path).open_file(name)
        assert file is not None
        with pytest.raises(NotFoundError, match=name):
            await file.aread_range(0, 1)
        await file.aclose()


def test_a_subclass_that_gives_other_bytes_is_asked_for_all_of_them(tmp_path: Path) -> None:
    """Whoever overrides `aread_range`, to decrypt or to count, gets every read."""

    class Upper(LocalStorage):
        async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
            return (await super().aread_range(path, offset, length)).upper()

    (tmp_path / "m.jsonl").write_bytes(b'{"x":"a"}\n' * 200_000)
    assert Upper(tmp_path).open_file("m.jsonl") is None
    reader = IncrementalReader(Upper(tmp_path), "m.jsonl", max_records=200_000)
    assert {record["X"] for record in reader.read()} == {"A"}
    patched: Any = LocalStorage(tmp_path)
    patched.aread_range = Upper(tmp_path).aread_range
    assert {record["X"] for record in IncrementalReader(patched, "m.jsonl").read()} == {"A"}


def open_files() -> list[str]:
    found = []
    for descriptor in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


@pytest.mark.anyio
@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="the system does not list open files")
async def test_nothing_stays_open(tmp_path: Path) -> None:
    """The file is closed after a read to its end, a cancelled one, and an iteration that was left."""
    store = TrainingRunStore(tmp_path)
    data = lines(0, 300_000)
    (tmp_path / "metrics.jsonl").write_bytes(data)
    (tmp_path / "iteration_000001").mkdir()
    rollouts = tmp_path / "iteration_000001" / "train_rollout_summaries.jsonl"
    rollouts.write_bytes(data)
    assert len(await store.aread_new_metrics()) == 300_000
    for delay in (0.0, 0.001, 0.003, 0.01, 0.02):
        with anyio.move_on_after(delay):
            await TrainingRunStore(tmp_path).aread_metrics()
    async with contextlib.aclosing(store.aiter_rollouts(1)) as records:
        async for record in records:
            if record["step"] == 150_000:
                assert str(rollouts) in open_files()
                break
    with contextlib.closing(store.iter_rollouts(1)) as in_turn:
        assert next(record for record in in_turn if record["step"] == 150_000)
        assert str(rollouts) in open_files()
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]


@pytest.mark.anyio
async def test_a_large_file_in_memory_takes_few_hops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is, what the system has in memory costs no thread beyond the first and last reads."""
    hops = 0
    pool = _bridge._shared.operations
    start = pool.start

    def counted(call: Callable[[], Callable[[], object]]) -> None:
        nonlocal hops
        hops += 1
        start(call)

    path = tmp_path / "metrics.jsonl"
    path.write_bytes(lines(0, 600_000))
    if not reads_without_waiting(path):
        pytest.skip("the file system cannot tell what is in memory")
    monkeypatch.setattr(pool, "start", counted)
    assert len(await TrainingRunStore(tmp_path).aread_metrics()) == 50_000
    assert path.stat().st_size > 8 * LocalStorage.fetch_size
    assert hops == 4  # without and with the file held open, at its end, and to close it


def reads_without_waiting(path: Path) -> bool:
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False


async def half_way(reader: IncrementalReader) -> None:
    """Wait until a read that another task began is in the middle of the file, turn by turn."""
    while reader.total_read < 60_000:  # noqa: ASYNC110  a reader tells nobody how far it is
        await asyncio.sleep(0)


@pytest.mark.anyio
@pytest.mark.usefixtures("no_stretch")
async def test_a_file_replaced_during_a_read(tmp_path: Path) -> None:
    """The read goes on to the end of the file that it began with; the next one has all of the new file."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 100_000, kind="old"))
    reader = IncrementalReader(tmp_path, "m.jsonl", max_records=200_000)
    reading = asyncio.ensure_future(reader.aread())
    await half_way(reader)
    assert not reading.done()
    replace(path, lines(0, 70_000, kind="new"))  # at once: the task has no turn meanwhile
    old = await reading
    assert [record["kind"] for record in old] == ["old"] * 100_000
    new = await reader.aread()
    assert [record["kind"] for record in new] == ["new"] * 70_000
    assert reader.records == new


@pytest.mark.anyio
@pytest.mark.usefixtures("no_stretch")
async def test_another_caller_is_in_the_new_file_already(tmp_path: Path) -> None:
    """Who still holds the old file open never takes the reader back to it: each record comes once."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(lines(0, 100_000, kind="old"))
    reader = IncrementalReader(tmp_path, "m.jsonl", max_records=200_000)
    reading = asyncio.ensure_future(reader.aread())
    await half_way(reader)
    assert not reading.done()
    replace(path, lines(0, 70_000, kind="new"))
    by_another = reader.read()  # at once: the task has no turn meanwhile
    handed_out = await reading + by_another
    old = [record for record in handed_out if record["kind"] == "old"]
    new = [record for record in handed_out if record["kind"] == "new"]
    assert steps(old) == list(range(len(old)))
    assert len(old) >= 60_000
    assert sorted(steps(new)) == list(range(70_000))
    assert await reader.aread() == []
    assert [record["kind"] for record in reader.records] == ["new"] * 70_000
