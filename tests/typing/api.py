"""Every public name in use, as a type checker sees it: this file is checked, and never run."""

import argparse
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

from runstore import (
    AccessDeniedError,
    AsyncFollower,
    AsyncStorage,
    Batch,
    BenchmarkResult,
    BucketNotFoundError,
    BucketWarning,
    CheckpointRecord,
    CredentialsError,
    EvalStore,
    EventLoopError,
    Follower,
    FsspecStorage,
    IncrementalReader,
    InvalidInputError,
    IterationInfo,
    LocalStorage,
    MalformedFileError,
    MalformedLine,
    MalformedLines,
    MissingDependencyError,
    NotFoundError,
    RunInfo,
    RunMetadata,
    RunRegistry,
    RunStoreError,
    RunStoreWarning,
    S3Storage,
    SpoolKeptWarning,
    Storage,
    StorageFullError,
    StorageIOError,
    StorageListing,
    StorageStat,
    StoredTrajectory,
    StoredTurn,
    TrainingRunStore,
    UnavailableError,
    UnstorableValueError,
    UploadDelayedWarning,
    storage_from_uri,
    storage_join,
    strict_json,
)

Record = dict[str, Any]


class SyncOnly:
    """An object that has the sync methods of a storage."""

    def url(self, path: str = "") -> str:
        return path

    def read(self, path: str) -> bytes:
        return b""

    def write(self, path: str, data: bytes) -> None: ...

    def append(self, path: str, data: bytes) -> None: ...

    def exists(self, path: str) -> bool:
        return False

    def stat(self, path: str) -> StorageStat | None:
        return None

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        return b""

    def list_dir(self, prefix: str) -> list[str]:
        return []

    def remove(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None: ...


def opening() -> list[TrainingRunStore]:
    storage = storage_from_uri("file:///data/runs")
    assert_type(storage, Storage)
    local = LocalStorage(Path("runs"), mkdir=False, fsync=True)
    assert_type(local.root, Path)
    bucket = S3Storage("s3", "bucket/runs", flush_interval=2.5, endpoint_url="http://127.0.0.1:9000")
    assert_type(bucket.durable_view(), S3Storage)
    assert_type(bucket.read("a"), bytes)
    return [
        TrainingRunStore(storage),
        TrainingRunStore(local, "a/b"),
        TrainingRunStore(bucket),
        TrainingRunStore(FsspecStorage("memory", "runs", global_store=True)),
        TrainingRunStore(storage_from_uri("s3://bucket/runs", anon=True, flush_interval=60)),
        TrainingRunStore("runs", prefix=storage_join("a", "b")),
        TrainingRunStore(Path("runs")),
        TrainingRunStore(SyncOnly()),
    ]


def writing(store: TrainingRunStore, metrics: Mapping[str, Any]) -> None:
    store.write_config({"lr": 0.1})
    store.write_config(argparse.Namespace(lr=0.1))
    store.write_metrics(metrics)
    store.write_metrics({"loss": 0.5}, step=1)
    store.write_timing_spans(1, [{"name": "sample", "duration": 0.5}])
    store.write_checkpoint({"name": "000001"})
    store.write_checkpoint(CheckpointRecord("final", batch=1, extra={"k": 1}))
    store.write_rollouts(1, [{"group_idx": 0}], base_name="eval_gsm8k")
    store.write_rollouts(1, (dict(metrics) for _ in range(3)))
    store.write_logtree(1, {"title": "t"})
    store.write_code_diff("text")
    store.write_code_diff(b"bytes")
    assert_type(store.truncate_metrics(5), int)


def reading(store: TrainingRunStore) -> None:
    assert_type(store.storage, Storage)
    assert_type(store.prefix, str)
    assert_type(store.url("config.json"), str)
    assert_type(store.read_config(), Record | None)
    assert_type(store.read_metrics(), list[Record])
    assert_type(store.read_new_metrics(), list[Record])
    assert_type(store.read_metrics_by_step(), list[Record])
    assert_type(store.metric_keys(), set[str])
    assert_type(store.metrics_cursor(), str)
    assert_type(store.snapshot_metrics(), Batch)
    assert_type(store.read_timing(), list[Record])
    assert_type(store.read_checkpoints(), list[Record])
    assert_type(store.read_checkpoint_records(), list[CheckpointRecord])
    assert_type(store.read_rollouts(1, "train"), list[Record])
    assert_type(store.read_single_rollout(1, 0, 0), Record | None)
    assert_type(store.read_logtree(1), Record | None)
    assert_type(store.list_logtrees(1), list[str])
    assert_type(store.list_iterations(), list[IterationInfo])


async def awaiting(store: TrainingRunStore) -> None:
    await store.awrite_config({"lr": 0.1})
    await store.awrite_metrics({"loss": 0.5}, step=1)
    await store.awrite_timing_spans(1, [{"name": "sample"}])
    await store.awrite_checkpoint(CheckpointRecord("final"))
    await store.awrite_rollouts(1, [{"group_idx": 0}])
    await store.awrite_logtree(1, {"title": "t"}, base_name="train")
    await store.awrite_code_diff("text")
    assert_type(await store.atruncate_metrics(5), int)
    assert_type(await store.aread_config(), Record | None)
    assert_type(await store.aread_metrics(), list[Record])
    assert_type(await store.aread_new_metrics(), list[Record])
    assert_type(await store.aread_metrics_by_step(), list[Record])
    assert_type(await store.asnapshot_metrics(), Batch)
    assert_type(await store.aread_timing(), list[Record])
    assert_type(await store.aread_checkpoints(), list[Record])
    assert_type(await store.aread_checkpoint_records(), list[CheckpointRecord])
    assert_type(await store.aread_rollouts(1), list[Record])
    assert_type(await store.aread_single_rollout(1, 0, 0), Record | None)
    assert_type(await store.aread_logtree(1), Record | None)
    assert_type(await store.alist_logtrees(1), list[str])
    assert_type(await store.alist_iterations(), list[IterationInfo])


async def choosing(store: TrainingRunStore) -> None:
    assert_type(store.find_checkpoint(), CheckpointRecord | None)
    assert_type(await store.afind_checkpoint("000010"), CheckpointRecord | None)
    assert_type(await store.afind_checkpoint(best="loss", lowest=True), CheckpointRecord | None)
    for rollout in store.iter_rollouts(1):
        assert_type(rollout, Record)
    async for rollout in store.aiter_rollouts(1, base_name="eval_gsm8k"):
        assert_type(rollout, Record)


async def finding(storage: Storage) -> None:
    registry = RunRegistry([storage, "runs", SyncOnly()], ("eval",), depth=2, active_seconds=60.0, limit=8)
    assert_type(RunRegistry("runs").storage_count, int)
    assert_type(registry.primary_storage, Storage)
    assert_type(registry.storage_for("a"), Storage)
    assert_type(registry.storage_errors, dict[str, Exception])
    assert_type(registry.refresh(), list[RunInfo])
    assert_type(registry.get_runs("sweep/*", status="running", training_type="rl"), list[RunInfo])
    assert_type(registry.get_run("a"), RunInfo | None)
    assert_type(registry.get_training_store("a"), TrainingRunStore)
    assert_type(registry.get_eval_store(), EvalStore | None)
    assert_type(await registry.arefresh(), list[RunInfo])
    assert_type(await registry.aget_runs(), list[RunInfo])
    assert_type(await registry.aget_run("a"), RunInfo | None)
    assert_type(await registry.aget_training_store("a"), TrainingRunStore)
    assert_type(await registry.aget_eval_store(), EvalStore | None)
    for info in await registry.aget_runs():
        assert_type((info.run_id, info.prefix, info.iteration_count), tuple[str, str, int])
        assert_type((info.last_updated, info.age), tuple[float | None, float | None])
        assert_type((info.status_reason, info.error), tuple[str, str | None])


async def evaluating(store: EvalStore) -> None:
    run_id = store.create_run("model", ["gsm8k"], checkpoint_name="final", config={"n": 1})
    assert_type(run_id, str)
    store.write_result(run_id, BenchmarkResult("gsm8k", 0.5, 2, 1, pass_at_k={1: 0.5}))
    store.write_trajectory(run_id, "gsm8k", StoredTrajectory(0, "gsm8k", turns=[StoredTurn("user", "?")]))
    store.write_summary(run_id, {"gsm8k": BenchmarkResult("gsm8k", 0.5, 2, 1)})
    assert_type(store.run_dir(run_id), str)
    assert_type(store.finalize_run(run_id), RunMetadata)
    assert_type(store.list_runs(), list[RunMetadata])
    assert_type(store.list_benchmarks(run_id), list[str])
    assert_type(store.read_result(run_id, "gsm8k"), BenchmarkResult | None)
    assert_type(store.read_trajectories(run_id, "gsm8k", correct_only=True), list[StoredTrajectory])
    assert_type(store.read_single_trajectory(run_id, "gsm8k", 0), StoredTrajectory | None)
    assert_type(store.read_summary(run_id), Record | None)
    assert_type(await store.aread_run(run_id), RunMetadata)
    assert_type(RunMetadata.from_dict({}), RunMetadata)
    await store.adelete_run(run_id)


def records(record: CheckpointRecord, info: IterationInfo) -> None:
    assert_type(CheckpointRecord.from_dict({"name": "a"}), CheckpointRecord)
    assert_type(record.to_dict(), Record)
    assert_type(record.has("batch"), bool)
    assert_type((record.name, record.batch, record.epoch), tuple[str, int | None, int | None])
    assert_type((record.final, record.state_path), tuple[bool | None, str | None])
    assert_type((record.sampler_path, record.extra), tuple[str | None, Record])
    assert_type((info.iteration, info.has_train_rollouts), tuple[int, bool])
    assert_type((info.has_train_logtree, info.eval_labels), tuple[bool, list[str]])


def following(store: TrainingRunStore) -> None:
    with store.follow_metrics(cursor="end", interval=0.5) as follower:
        assert_type(follower, Follower)
        for batch in follower:
            assert_type(batch, Batch)
            assert_type((batch.records, batch.cursor, batch.reset), tuple[list[Record], str, bool])
            for record in batch:
                assert_type(record, Record)
    assert_type(store.follow_timing(), Follower)


async def following_async(store: TrainingRunStore) -> None:
    async with store.afollow_metrics(cursor=store.metrics_cursor()) as follower:
        assert_type(follower, AsyncFollower)
        async for batch in follower:
            assert_type(batch, Batch)
    await store.afollow_timing(interval=1).aclose()


async def incremental(storage: Storage) -> None:
    reader = IncrementalReader(storage, "metrics.jsonl", max_records=10)
    assert_type(reader.read(), list[Record])
    assert_type(await reader.aread(), list[Record])
    assert_type(reader.records, list[Record])
    assert_type(reader.has_data(), bool)
    assert_type(await reader.ahas_data(), bool)
    assert_type((reader.total_read, reader.known_keys), tuple[int, set[str]])
    assert_type(reader.cursor, str)
    malformed = reader.malformed
    assert_type(malformed, MalformedLines)
    assert_type((malformed.count, malformed.latest), tuple[int, tuple[MalformedLine, ...]])
    for line in malformed.latest:
        assert_type((line.line, line.offset, line.reason), tuple[int, int, str])
    assert_type(strict_json({"loss": float("nan")}), str)


async def storing(storage: Storage, half: AsyncStorage) -> None:
    with storage as entered:
        assert_type(entered, Storage)
    async with half as entered_half:
        assert_type(entered_half, AsyncStorage)
    assert_type(storage.read("a"), bytes)
    assert_type(storage.read_range("a", 0, 5), bytes)
    assert_type(storage.exists("a"), bool)
    assert_type(storage.stat("a"), StorageStat | None)
    assert_type(storage.list_dir(""), list[str])
    assert_type(storage.scan("", StorageListing()), StorageListing)
    assert_type(storage.find("", "a"), dict[str, StorageStat])
    assert_type(storage.scan("").files, dict[str, StorageStat])
    assert_type(storage.scan("").folders, list[str])
    assert_type((StorageStat(1, 2.0).size, StorageStat(1, 2.0).mtime), tuple[int, float])
    storage.write("a", b"")
    storage.append("a", b"")
    storage.append_lines("a", b"\n")
    storage.remove("a")
    storage.remove_dir("b")
    storage.flush()
    storage.close()
    assert_type(await half.aread("a"), bytes)
    assert_type(await half.aread_range("a", 0), bytes)
    assert_type(await half.aexists("a"), bool)
    assert_type(await half.astat("a"), StorageStat | None)
    assert_type(await half.alist_dir(""), list[str])
    await half.awrite("a", b"")
    await half.aappend("a", b"")
    await half.aremove("a")
    await half.aremove_dir("b")
    await half.aflush()
    await half.aclose()


def handling(store: TrainingRunStore) -> None:
    try:
        store.read_config()
    except NotFoundError as error:
        missing: FileNotFoundError = error
        raise missing from None
    except (AccessDeniedError, CredentialsError) as error:
        denied: PermissionError = error
        raise denied from None
    except UnavailableError as error:
        away: ConnectionError = error
        raise away from None
    except (BucketNotFoundError, StorageFullError, StorageIOError) as error:
        failed: OSError = error
        raise failed from None
    except (InvalidInputError, MalformedFileError) as error:
        wrong: ValueError = error
        raise wrong from None
    except UnstorableValueError as error:
        unstorable: TypeError = error
        raise unstorable from None
    except EventLoopError as error:
        loop: RuntimeError = error
        raise loop from None
    except MissingDependencyError as error:
        dependency: ImportError = error
        raise dependency from None
    except RunStoreError as error:
        any_other: Exception = error
        raise any_other from None


def warned() -> list[type[RunStoreWarning]]:
    warnings.simplefilter("error", RunStoreWarning)
    return [BucketWarning, SpoolKeptWarning, UploadDelayedWarning]
