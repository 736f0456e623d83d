"""What waits on the local disk: who delivers it, who only looks, and what must not be appended any more."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runstore import (
    AccessDeniedError,
    BucketWarning,
    CredentialsError,
    RunRegistry,
    S3Storage,
    SpoolKeptWarning,
    TrainingRunStore,
)
from runstore.remote import _s3_commit
from tests.s3.place import METRICS, Place, forget_pending
from tests.s3.proxy import FaultProxy, Status
from tests.s3.server import S3Server
from tests.scripts import run, write_script

MIB = 1024 * 1024

# Delivers one record, appends two more, and is killed.
WRITER = """
import json, os, signal, sys
from runstore import TrainingRunStore, storage_from_uri

storage = storage_from_uri(sys.argv[1], flush_interval=3600, **json.loads(sys.argv[2]))
store = TrainingRunStore(storage)
store.write_metrics({"loss": 1.0}, step=0)
storage.flush()
store.write_metrics({"loss": 1.0}, step=1)
store.write_metrics({"loss": 1.0}, step=2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, proxy: FaultProxy, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, proxy.endpoint, spool_folder)


@pytest.fixture
def left(place: Place, tmp_path: Path) -> Place:
    """The place of a run whose writer died with two records undelivered."""
    done = run(write_script(tmp_path, WRITER), place.uri, json.dumps(place.options()))
    assert (done.returncode, done.stderr) == (-9, "")
    assert place.steps() == [0]
    assert len(place.spooled()) == 1
    return place


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    forget_pending()


def everything(place: Place) -> list[object]:
    """The spool's files and the bucket's objects, with their times and contents."""
    files = [path for path in sorted(place.spool.rglob("*")) if path.is_file()]
    keys = place.server.keys(place.prefix)
    heads = [place.server.head(key) for key in keys]
    return [
        [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files],
        [(key, head["ETag"], head["LastModified"]) for key, head in zip(keys, heads, strict=True)],
    ]


# ---- looking


LOOKS: dict[str, Callable[[S3Storage], object]] = {
    "opening": lambda storage: TrainingRunStore(storage).url(),
    "list_dir": lambda storage: storage.list_dir(""),
    "find": lambda storage: storage.find(""),
    "iterations": lambda storage: TrainingRunStore(storage).list_iterations(),
    "registry": lambda storage: RunRegistry([storage]).refresh(),
    "another file": lambda storage: TrainingRunStore(storage).read_config(),
}


@pytest.mark.parametrize("identity", ["readonly", "admin"])
def test_b03_looking_at_a_run_changes_nothing(left: Place, identity: str) -> None:
    """Opening and listing, whatever the rights: no byte and no time changes, nothing is said."""
    before = everything(left)
    for look in LOOKS.values():
        look(left.storage(identity))
    assert everything(left) == before


def test_b03_a_follower_changes_nothing(left: Place) -> None:
    """It waits for what is delivered by others, and reads what is there."""
    before = everything(left)
    follower = left.run("readonly").follow_metrics()
    assert [row["step"] for row in next(follower).records] == [0]
    follower.close()
    assert everything(left) == before


def test_b03_reading_without_the_right_to_write_reports_and_reads(left: Place) -> None:
    """One warning, however often it is read; then whoever has the right delivers, in the same process too."""
    before = everything(left)
    reader = left.storage("readonly")
    with pytest.warns(SpoolKeptWarning, match="may not deliver") as warned:
        assert [row["step"] for row in TrainingRunStore(reader).read_metrics()] == [0]
    assert len(warned) == 1
    assert f"{left.uri}/metrics.jsonl" in str(warned[0].message)
    assert str(left.spooled()[0].parent) in str(warned[0].message)
    for _ in range(3):
        assert reader.stat(METRICS) is not None
        reader.flush()
    assert everything(left) == before
    assert [row["step"] for row in left.run("trainer").read_metrics()] == [0, 1, 2]
    assert left.spooled() == []


def test_b03_listing_below_a_file_that_waits_is_no_delivery(left: Place) -> None:
    """A listing by the process that appends delivers its own, not what others left."""
    storage = left.storage()
    storage.append_lines("other.jsonl", b"{}\n")
    assert storage.list_dir("") == [METRICS, "other.jsonl"]
    assert left.steps() == [0]


# ---- delivering


DELIVERIES: dict[str, Callable[[TrainingRunStore], object]] = {
    "read": lambda store: store.read_metrics(),
    "read_range": lambda store: store.storage.read_range(METRICS, 0, 1),
    "stat": lambda store: store.storage.stat(METRICS),
    "exists": lambda store: store.storage.exists(METRICS),
    "flush": lambda store: store.storage.flush(),
    "close": lambda store: store.storage.close(),
    "truncate": lambda store: store.truncate_metrics(3),
}


@pytest.mark.parametrize("call", DELIVERIES)
def test_what_a_dead_writer_left_goes_first(left: Place, call: str) -> None:
    """Reading, asking, flushing and truncating deliver it, with the rights of a trainer; before one's own."""
    DELIVERIES[call](left.run("trainer"))
    assert left.steps() == [0, 1, 2]
    assert left.spooled() == []


def test_what_a_dead_writer_left_comes_before_new_records(left: Place) -> None:
    """A trainer that goes on from there appends behind it."""
    store = left.run("trainer")
    store.write_metrics({"loss": 1.0}, step=3)
    store.storage.flush()
    assert left.steps() == [0, 1, 2, 3]
    assert left.spooled() == []


@contextmanager
def elsewhere(tmp_path: Path) -> Iterator[None]:
    """As on another machine: with a spool folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNSTORE_SPOOL_DIR", str(tmp_path / "elsewhere"))
        yield
        forget_pending()


def test_the_appends_of_others_do_not_make_it_stale(left: Place, tmp_path: Path) -> None:
    """The object is the same, only longer: what was left is appended."""
    with elsewhere(tmp_path), left.storage() as other:
        other.append_lines(METRICS, b'{"step": 10}\n')
    left.storage().read(METRICS)
    assert left.steps() == [0, 10, 1, 2]
    assert left.spooled() == []


def written_anew(place: Place) -> None:
    place.storage().write(METRICS, b'{"step": 10}\n{"step": 11}\n{"step": 12}\n')


def replaced_by_another_tool(place: Place) -> None:
    place.put(b'{"step": 10}\n' * 100)


def truncated_by_another_tool(place: Place) -> None:
    place.put(b"")


def deleted(place: Place) -> None:
    place.server.delete(place.key())


@pytest.mark.parametrize(
    "change", [written_anew, replaced_by_another_tool, truncated_by_another_tool, deleted]
)
def test_what_was_appended_to_something_else_is_kept_for_people(
    left: Place, tmp_path: Path, change: Callable[[Place], None]
) -> None:
    """Somebody replaced, truncated or deleted the object since: the records go to a file beside the spool."""
    with elsewhere(tmp_path):
        change(left)
    now = left.data()
    with pytest.warns(SpoolKeptWarning, match="not appended") as warned:
        left.storage().flush()
    (kept,) = left.spool.rglob("*.stale")
    assert [json.loads(line)["step"] for line in kept.read_bytes().splitlines()] == [1, 2]
    assert len(warned) == 1
    assert str(kept) in str(warned[0].message)
    assert left.data() == now
    assert left.spooled() == []
    store = left.run()
    store.write_metrics({"loss": 1.0}, step=3)
    store.storage.flush()
    assert left.steps()[-1] == 3
    assert kept.exists()


# ---- credentials


def appended(storage: S3Storage) -> None:
    storage.append_lines(METRICS, b'{"step": 2}\n')
    storage.flush()


ASKED: dict[str, Callable[[S3Storage], object]] = {
    "flush": lambda storage: storage.flush(),
    "read": lambda storage: storage.read(METRICS),
    "list": lambda storage: storage.list_dir(""),
    "append": appended,
}


@pytest.mark.parametrize("tried", [True, False])
@pytest.mark.parametrize("call", ASKED)
def test_another_storage_delivers_with_credentials_that_are_right(
    place: Place, call: str, *, tried: bool
) -> None:
    """What was appended with a wrong secret is delivered when a storage with the right one asks for it."""
    wrong = place.storage("wrong_secret")
    wrong.append_lines(METRICS, b'{"step": 1}\n')
    if tried:
        with pytest.raises(CredentialsError):
            wrong.flush()
    ASKED[call](place.storage())
    assert place.steps() == [1, 2][: 1 + (call == "append")]
    assert place.spooled() == []


def test_a_reader_beside_the_trainer_needs_no_right_to_write(place: Place) -> None:
    """In one process: what the trainer's storage appended is delivered with its rights when a reader asks."""
    place.storage("trainer").append_lines(METRICS, b'{"step": 1}\n')
    assert place.storage("readonly").read(METRICS) == b'{"step": 1}\n'
    place.storage("trainer").append_lines(METRICS, b'{"step": 2}\n')
    assert place.storage("readonly").list_dir("") == [METRICS]
    assert place.steps() == [1, 2]


def test_appends_without_the_right_to_write_wait(place: Place) -> None:
    """The append is safe on the disk; each flush says what is missing; with the right it is delivered."""
    storage = place.storage("readonly")
    storage.append_lines(METRICS, b'{"step": 1}\n')
    for _ in range(2):
        with pytest.raises(AccessDeniedError):
            storage.flush()
    assert len(place.spooled()) == 1
    place.storage().flush()
    assert place.steps() == [1]


# ---- buckets and servers that are otherwise


def test_a_bucket_with_versions_warns_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush stores a version there: one warning for the bucket, and everything works."""
    monkeypatch.setattr(_s3_commit, "_versioned", set())
    server = dataclasses.replace(place.server, bucket=place.server.versioned_bucket)
    versioned = dataclasses.replace(place, server=server)
    storage = versioned.storage()
    storage.append_lines(METRICS, b'{"step": 0}\n')
    with pytest.warns(BucketWarning, match="'versioned' keeps versions"):
        storage.flush()
    for step in (1, 2):
        for name in (METRICS, "timing_spans.jsonl"):
            storage.append_lines(name, b'{"step": %d}\n' % step)
        storage.flush()
    assert versioned.steps() == [0, 1, 2]


@pytest.mark.parametrize("identity", ["admin", "trainer"])
def test_a_server_that_ignores_conditions_is_found_out_once(
    place: Place, proxy: FaultProxy, identity: str
) -> None:
    """A conditional write that must fail, to a key of our own, succeeds: one warning, whatever the rights."""
    taken = proxy.fail(Status(201, "Created"), operation="PutObject", key="*.runstore-probe")
    storage = place.storage(identity)
    storage.append_lines(METRICS, b'{"step": 0}\n')
    with pytest.warns(BucketWarning, match="ignores the conditions"):
        storage.flush()
    for step in (1, 2):
        for name in (METRICS, "timing_spans.jsonl"):
            storage.append_lines(name, b'{"step": %d}\n' % step)
        storage.flush()
    assert taken.hits == 1
    assert proxy.count("DeleteObject", key="*.runstore-probe") == 1
    assert place.steps() == [0, 1, 2]


def test_a_server_that_heeds_conditions_is_asked_once(place: Place, proxy: FaultProxy) -> None:
    """One request for an endpoint, whatever the number of files; nothing is made by it, nothing said."""
    for name in ("a", "b", "c"):
        place.storage().append(name, b"1")
    place.storage().flush()
    assert proxy.count("PutObject", key="*.runstore-probe") == 1
    assert place.server.keys(place.prefix) == [place.key(name) for name in ("a", "b", "c")]


# ---- least privilege


def test_a_trainers_rights_suffice_for_a_whole_run(place: Place, proxy: FaultProxy) -> None:
    """PutObject, GetObject, ListBucket on the prefix: all files of a run, above 5 MiB, resumed, followed."""
    store = place.run("trainer")
    store.write_config({"lr": 0.1})
    store.write_code_diff("diff")
    for step in range(3):
        store.write_metrics({"loss": 0.5}, step=step)
        store.write_timing_spans(step, [{"name": "a", "duration": 1.0, "wall_start": 0.0, "wall_end": 1.0}])
        store.write_rollouts(step, [{"group_idx": 0, "traj_idx": 0}])
        store.write_logtree(step, {"title": "t"})
    store.write_checkpoint({"name": "final", "final": True})
    place.put(b'{"step": 0}\n' * (6 * MIB // 12), "large/metrics.jsonl")
    large = TrainingRunStore(store.storage, "large")
    large.write_metrics({"loss": 0.5}, step=7)
    store.storage.flush()
    large.storage.flush()
    again = place.run("trainer")
    assert again.read_config() == {"lr": 0.1}
    assert len(again.read_metrics()) == len(again.read_timing()) == 3
    assert [info.iteration for info in again.list_iterations()] == [0, 1, 2]
    assert again.read_rollouts(1) == [{"group_idx": 0, "traj_idx": 0}]
    assert again.read_logtree(1) == {"title": "t"}
    assert [record.name for record in again.read_checkpoint_records()] == ["final"]
    assert large.read_metrics()[-1]["step"] == 7
    follower = again.follow_metrics()
    assert len(next(follower).records) == 3
    follower.close()
    assert again.truncate_metrics(2) == 1
    assert {info.run_id for info in RunRegistry([place.storage("trainer")]).refresh()} == {"large", "root"}
    refused = [request.operation for request in proxy.requests if request.status == 403]
    assert refused == []
