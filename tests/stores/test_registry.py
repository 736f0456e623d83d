"""The registry: which folders are runs, under which ids, and what a refresh reads."""

import os
import pickle
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runstore import (
    EvalStore,
    InvalidInputError,
    LocalStorage,
    NotFoundError,
    RunRegistry,
    StorageIOError,
    StorageListing,
    TrainingRunStore,
)
from tests.scripts import NOBODY, run, write_script
from tests.stores.helpers import Call

pytestmark = pytest.mark.anyio


LIST_AS_NOBODY = f"""
import sys
from runstore import RunRegistry
RunRegistry(["."]).refresh()
{NOBODY}
for info in RunRegistry([sys.argv[1]]).refresh():
    print(info.run_id, info.status, "denied" if "denied" in str(info.error) else info.error)
"""


class Watched(LocalStorage):
    """A local storage that notes what is asked of it, or answers nothing."""

    dead = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.scanned: list[str] = []
        self.fetched: list[str] = []
        self.threads: set[int] = set()

    async def ascan(self, prefix: str, known: StorageListing | None = None) -> StorageListing:
        if self.dead:
            raise StorageIOError(5, f"no answer from {self.url(prefix)}")
        self.scanned.append(prefix)
        self.threads.add(threading.get_ident())
        return await super().ascan(prefix, known)

    async def aread(self, path: str) -> bytes:
        self.fetched.append(path)
        return await super().aread(path)

    async def aexists(self, path: str) -> bool:
        if self.dead:
            raise StorageIOError(5, f"no answer from {self.url(path)}")
        return await super().aexists(path)


def put(root: Path, **files: str) -> None:
    """Files of runs: `put(root, a="config.json")` makes root/a/config.json."""
    for folder, names in files.items():
        for name in names.split():
            path = root / folder.replace("__", "/") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}\n")


def make_old(root: Path) -> None:
    """Everything below was left alone for a day."""
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 86_400))


async def ids(registry: RunRegistry, call: Call, *args: Any, **kwargs: Any) -> list[str]:
    return [info.run_id for info in await call(registry.aget_runs, *args, **kwargs)]


# ---- which folders are runs


async def test_a_folder_with_metrics_or_a_config_is_a_run(tmp_path: Path, call: Call) -> None:
    """These two files make a run, and what else is there is told from the same scan."""
    put(tmp_path, a="metrics.jsonl", b="config.json checkpoints.jsonl timing_spans.jsonl", c="notes.txt")
    for number in (0, 9, 10):
        (tmp_path / "b" / f"iteration_{number:06d}").mkdir()
    odd = [
        "iteration_",
        "iteration_x",
        "iteration_i5",
        "iteration_iteration_5",
        "iteration_5x",
        "iteration_\udcff",
        "iteration_\u0663",
    ]
    for name in odd:
        (tmp_path / "b" / name).mkdir()
    first, second = await call(RunRegistry([LocalStorage(tmp_path)]).arefresh)
    assert (first.run_id, first.prefix, first.has_config, first.has_metrics) == ("a", "a", False, True)
    assert (second.has_config, second.has_metrics, second.has_checkpoints) == (True, False, True)
    assert (first.has_timing, second.has_timing) == (False, True)
    assert (first.iteration_count, second.iteration_count) == (0, 3)
    assert (first.error, second.error) == (None, None)


async def test_an_iteration_of_two_names_counts_once(tmp_path: Path, call: Call) -> None:
    """As a list of the iterations has it: by number, however many zeros stand before."""
    put(tmp_path, a="metrics.jsonl")
    for name in ("iteration_2", "iteration_000002", "iteration_1", "iteration_000010"):
        (tmp_path / "a" / name).mkdir()
    registry = RunRegistry([LocalStorage(tmp_path)])
    (info,) = await call(registry.arefresh)
    iterations = await (await registry.aget_training_store("a")).alist_iterations()
    assert [iteration.iteration for iteration in iterations] == [1, 2, 10]
    assert info.iteration_count == 3


async def test_a_root_that_is_a_run_hides_none_below_it(tmp_path: Path, call: Call) -> None:
    """It has the id `root`; a stray config.json leaves the runs below listed."""
    put(tmp_path, a="metrics.jsonl")
    (tmp_path / "config.json").write_text("{}")
    registry = RunRegistry([LocalStorage(tmp_path)])
    assert await ids(registry, call) == ["root", "a"]
    root = await call(registry.aget_run, "root")
    assert root is not None
    assert root.prefix == ""


async def test_depth_finds_nested_sweeps(tmp_path: Path, call: Call) -> None:
    """`depth` counts levels below the root; a run inside a run is found as any other."""
    put(tmp_path, a="metrics.jsonl", a__b="metrics.jsonl", s__g__r="config.json", s__q="config.json")
    expected = {
        0: [],
        1: ["a"],
        2: ["a", "a/b", "s/q"],
        3: ["a", "a/b", "s/g/r", "s/q"],
        4: ["a", "a/b", "s/g/r", "s/q"],
    }
    for depth, found in expected.items():
        assert await ids(RunRegistry([tmp_path.as_uri()], depth=depth), call) == found


async def test_b20_folders_that_cannot_be_runs_are_never_entered(tmp_path: Path, call: Call) -> None:
    """Checkpoints, iterations, hidden folders and those of tools are not listed, at any depth."""
    (tmp_path / "weights.bin").touch()
    for number in range(10):
        put(tmp_path, **{f"r{number}": "metrics.jsonl"})
        checkpoints = tmp_path / f"r{number}" / "checkpoints"
        checkpoints.mkdir()
        for name in range(5_000):
            os.link(tmp_path / "weights.bin", checkpoints / f"{name}.bin")
        put(tmp_path / f"r{number}", iteration_000003="config.json", wandb="config.json")
    put(tmp_path, checkpoints="config.json", **{".ipynb_checkpoints": "config.json"})
    storage = Watched(tmp_path)
    registry = RunRegistry([storage], depth=4)
    assert await ids(registry, call) == [f"r{number}" for number in range(10)]
    assert sorted(storage.scanned) == ["", *(f"r{number}" for number in range(10))]


async def test_links_are_followed_and_loops_end(tmp_path: Path, call: Call) -> None:
    """A linked run is a run; a link back to a folder that it is in lists nothing twice."""
    put(tmp_path, runs__a="metrics.jsonl", elsewhere__b="metrics.jsonl", runs__s__c="metrics.jsonl")
    runs = tmp_path / "runs"
    (runs / "b").symlink_to(tmp_path / "elsewhere" / "b")
    (runs / "dangling").symlink_to("nowhere")
    (runs / "itself").symlink_to("itself")
    (runs / "s" / "up").symlink_to(runs)
    (runs / "a" / "here").symlink_to(".")
    for depth in (2, 7):
        assert await ids(RunRegistry([LocalStorage(runs)], depth=depth), call) == ["a", "b", "s/c"]


async def test_every_run_of_a_broken_root_is_listed(tmp_path: Path, call: Call) -> None:
    """Broken files of a run are its error; nothing raises, and sound runs are as they were."""
    put(tmp_path, good="config.json metrics.jsonl", empty="metrics.jsonl", odd="metrics.jsonl")
    put(tmp_path, array="metrics.jsonl", broken="metrics.jsonl", **{".ipynb_checkpoints": "a"})
    for name, text in (("empty", ""), ("array", "[1]"), ("broken", '{"a": ')):
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "odd" / "checkpoints.jsonl").write_text('1\n"two"\n[3]\n')
    (tmp_path / "file").write_text("in a run's place")
    (tmp_path / "dangling").symlink_to("nowhere")
    infos = {info.run_id: info for info in await call(RunRegistry([LocalStorage(tmp_path)]).arefresh)}
    assert sorted(infos) == ["array", "broken", "empty", "good", "odd"]
    assert infos["good"].error is None
    for name in ("array", "broken", "empty"):
        assert f"{name}/config.json" in str(infos[name].error)
    assert "3 malformed" in str(infos["odd"].error)


def test_an_unreadable_folder_is_listed_with_its_error(tmp_path: Path) -> None:
    """A run whose folder may not be read is there, with the reason; the others are too."""
    with tempfile.TemporaryDirectory() as folder:  # which anybody may enter, unlike tmp_path
        root = Path(folder)
        put(root, a="metrics.jsonl", b="metrics.jsonl", c="metrics.jsonl", d="metrics.jsonl")
        put(root, c__iteration_000001="x")
        make_old(root)
        closed = {"b": 0, "c/iteration_000001": 0, "d": 0o744}  # names of the last may be read, no more
        for name, mode in {".": 0o755, **closed}.items():
            (root / name).chmod(mode)
        finished = run(write_script(tmp_path, LIST_AS_NOBODY), root)
        for name in closed:
            (root / name).chmod(0o755)
    lines = ["a idle None", "b idle denied", "c idle denied", "d idle denied"]
    assert finished.stdout.splitlines() == lines, finished.stderr


# ---- ids


async def test_ids_of_two_storages_are_distinct_and_stay(tmp_path: Path, call: Call) -> None:
    """The later one of a shared id gets its storage's name before it, in its info too, and keeps it."""
    put(tmp_path, one__a="metrics.jsonl", one__b="metrics.jsonl", two__b="metrics.jsonl config.json")
    one, two = Watched(tmp_path / "one"), Watched(tmp_path / "two")
    registry = RunRegistry([one, two])
    assert await ids(registry, call) == ["a", "b", "two--b"]
    info = await call(registry.aget_run, "two--b")
    assert info is not None
    assert (info.prefix, info.has_config) == ("b", True)
    assert (registry.storage_for("b"), registry.storage_for("two--b")) == (one, two)
    store = await call(registry.aget_training_store, "two--b")
    assert store.url() == two.url("b")
    put(tmp_path, two__a="metrics.jsonl")
    one.dead = True
    await call(registry.arefresh)
    assert await ids(registry, call) == ["two--a", "two--b"]
    one.dead = False
    (tmp_path / "one" / "b" / "metrics.jsonl").unlink()
    await call(registry.arefresh)
    assert await ids(registry, call) == ["a", "two--a", "two--b"]


async def test_an_unknown_id(tmp_path: Path, call: Call) -> None:
    """It is `None` from `get_run`, and an error that names what is near elsewhere."""
    put(tmp_path, training="metrics.jsonl")
    registry = RunRegistry([LocalStorage(tmp_path)])
    assert await call(registry.aget_run, "trainin") is None
    with pytest.raises(NotFoundError, match="did you mean training"):
        await call(registry.aget_training_store, "trainin")
    with pytest.raises(NotFoundError):
        registry.storage_for("other")


@pytest.mark.parametrize("run_id", ["..", "../a", "a/../b", "a\0b", "a%2fb", "a%2Fb", "/etc"])
async def test_ids_that_cannot_be_any_are_refused_before_io(tmp_path: Path, call: Call, run_id: str) -> None:
    """They are an `InvalidInputError`, and no storage is asked."""
    storage = Watched(tmp_path)
    registry = RunRegistry([storage])
    with pytest.raises(InvalidInputError):
        await call(registry.aget_run, run_id)
    with pytest.raises(InvalidInputError):
        await call(registry.aget_training_store, run_id)
    with pytest.raises(InvalidInputError):
        registry.storage_for(run_id)
    assert storage.scanned == []


def test_numbers_out_of_range_are_refused() -> None:
    """No storage, a negative depth or window, no operation at all: each an error."""
    for storages, options in (
        ([], {}), (["a"], {"depth": -1}), (["a"], {"limit": 0}), (["a"], {"active_seconds": -1.0}),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError):
            RunRegistry(storages, **options)
    with pytest.raises(InvalidInputError):
        RunRegistry(["a"], ("../evals",))


@pytest.mark.parametrize("form", [str, Path, LocalStorage])
async def test_one_storage_needs_no_list(tmp_path: Path, call: Call, form: Callable[[Path], Any]) -> None:
    """A path, a `Path` and a storage by themselves are the only storage."""
    put(tmp_path, a="metrics.jsonl")
    assert await ids(RunRegistry(form(tmp_path)), call) == ["a"]


# ---- selecting, stores


async def test_runs_are_selected(tmp_path: Path, call: Call) -> None:
    """By glob on the id, by status, by training type."""
    put(tmp_path, s__a="metrics.jsonl", s__b="metrics.jsonl", t="metrics.jsonl")
    configs = {
        "s/a": '{"dpo_beta": 1, "loss_fn": 2}',
        "s/b": '{"loss_fn": "ppo"}',
        "t": '{"dataset_builder": {"__type__": "x.SupervisedBuilder"}}',
    }
    for name, text in configs.items():
        (tmp_path / name / "config.json").write_text(text)
    make_old(tmp_path / "t")
    registry = RunRegistry([LocalStorage(tmp_path)], depth=2)
    assert await ids(registry, call, "s/*") == ["s/a", "s/b"]
    assert await ids(registry, call, "*b") == ["s/b"]
    assert await ids(registry, call, status="idle") == ["t"]
    for typo in ({"status": "complete"}, {"training_type": "RL"}):
        with pytest.raises(InvalidInputError, match="must be one of"):
            await ids(registry, call, **typo)
    assert await ids(registry, call, status="running", training_type="rl") == ["s/b"]
    assert await ids(registry, call, training_type="dpo") == ["s/a"]
    assert await ids(registry, call, training_type="sl") == ["t"]


async def test_stores_are_the_same_until_a_refresh(tmp_path: Path, call: Call) -> None:
    """One store a run, dropped by a refresh; the evaluation store is looked for again too."""
    put(tmp_path, a="metrics.jsonl")
    registry = RunRegistry([LocalStorage(tmp_path)])
    store = await call(registry.aget_training_store, "a")
    assert isinstance(store, TrainingRunStore)
    assert await call(registry.aget_training_store, "a") is store
    assert await call(registry.aget_eval_store) is None
    put(tmp_path, eval_store="runs.jsonl")
    assert await call(registry.aget_eval_store) is None
    await call(registry.arefresh)
    assert await call(registry.aget_training_store, "a") is not store
    evals = await call(registry.aget_eval_store)
    assert isinstance(evals, EvalStore)
    assert evals.prefix == "eval_store"
    assert await call(registry.aget_eval_store) is evals


# ---- dead storages


async def test_a_dead_storage_hides_no_runs_of_the_others(
    tmp_path: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and can be asked for; when none answers, refresh raises; later it is found again."""
    put(tmp_path, one__a="metrics.jsonl", two__b="metrics.jsonl", two__eval="runs.jsonl")
    one, two = Watched(tmp_path / "one"), Watched(tmp_path / "two")
    registry = RunRegistry([one, two])
    one.dead = True
    assert await ids(registry, call) == ["b"]
    assert list(registry.storage_errors) == [one.url()]
    assert "no answer" in caplog.text
    evals = await call(registry.aget_eval_store)
    assert evals is not None
    two.dead = True
    with pytest.raises(StorageIOError, match="no answer"):
        await call(registry.arefresh)
    assert await ids(registry, call) == ["b"]
    one.dead = two.dead = False
    await call(registry.arefresh)
    assert await ids(registry, call) == ["a", "b"]
    assert registry.storage_errors == {}


# ---- what a refresh costs


async def test_a_refresh_reads_what_changed(tmp_path: Path, call: Call) -> None:
    """One scan a run and reads of nothing that is as it was; what is new or changed is seen."""
    for number in range(5):
        put(tmp_path, **{f"r{number}": "metrics.jsonl config.json checkpoints.jsonl"})
    make_old(tmp_path)
    storage = Watched(tmp_path)
    registry = RunRegistry([storage])
    first = await call(registry.arefresh)
    assert len(storage.fetched) == 10
    storage.fetched.clear()
    storage.scanned.clear()
    second = await call(registry.arefresh)
    assert storage.fetched == []
    assert sorted(storage.scanned) == ["", *(f"r{number}" for number in range(5))]
    assert " changed " in first[0].status_reason
    assert [info.last_updated for info in first] == [info.last_updated for info in second]
    put(tmp_path, new="config.json")
    (tmp_path / "r1" / "config.json").write_text('{"dpo_beta": 1}')
    with (tmp_path / "r2" / "checkpoints.jsonl").open("a") as file:
        file.write('{"name": "000010", "final": true}\n')
    with (tmp_path / "r3" / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    third = {info.run_id: info for info in await call(registry.arefresh)}
    assert sorted(storage.fetched) == ["new/config.json", "r1/config.json", "r2/checkpoints.jsonl"]
    assert third["r1"].training_type == "dpo"
    assert {name: info.status for name, info in third.items()} == {
        "new": "running", "r0": "idle", "r1": "running", "r2": "completed", "r3": "running", "r4": "idle",
    }  # fmt: skip
    (tmp_path / "r0" / "metrics.jsonl").unlink()
    (tmp_path / "r0" / "config.json").unlink()
    assert "r0" not in [info.run_id for info in await call(registry.arefresh)]


async def test_an_async_refresh_of_local_files_is_one_hop(tmp_path: Path) -> None:
    """The whole of a local storage is looked at in one thread, which is not the loop's."""
    for number in range(20):
        put(tmp_path, **{f"r{number}": "metrics.jsonl config.json"})
    storage = Watched(tmp_path)
    assert len(await RunRegistry([storage]).arefresh()) == 20
    assert len(storage.threads) == 1
    assert threading.get_ident() not in storage.threads


async def test_a_copy_made_by_pickle_goes_on(tmp_path: Path, call: Call) -> None:
    """It knows the runs, and finds new ones."""
    put(tmp_path, a="metrics.jsonl config.json")
    registry = RunRegistry([LocalStorage(tmp_path)])
    empty = pickle.loads(pickle.dumps(registry))
    await call(registry.arefresh)
    copy = pickle.loads(pickle.dumps(registry))
    put(tmp_path, b="metrics.jsonl")
    assert await ids(copy, call) == ["a"]
    await call(copy.arefresh)
    assert await ids(copy, call) == await ids(empty, call) == ["a", "b"]
