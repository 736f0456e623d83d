"""What runs, registries and evaluations do on local disk they do in a bucket."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runstore import (
    BenchmarkResult,
    CheckpointRecord,
    EvalStore,
    LocalStorage,
    NotFoundError,
    RunRegistry,
    Storage,
    StoredTrajectory,
    StoredTurn,
    TrainingRunStore,
    storage_from_uri,
)
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server

Call = Callable[..., Coroutine[Any, Any, Any]]


async def awaited(method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any) -> Any:
    return await method(*args, **kwargs)


async def called(method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any) -> Any:
    """The sync twin, inside the running loop."""
    twin = getattr(method.__self__, method.__name__[1:])  # type: ignore[attr-defined]
    return twin(*args, **kwargs)


@pytest.fixture(params=[awaited, called])
def call(request: pytest.FixtureRequest) -> Call:
    function: Call = request.param
    return function


@pytest.fixture
def bucket(s3_server: S3Server, s3_uri: str) -> Storage:
    return storage_from_uri(s3_uri, **s3_server.options())


async def whole_run(storage: Storage, call: Call) -> list[Any]:
    """Everything that a run's store does, and what came of it."""
    run = TrainingRunStore(storage, "sweep/run")
    results: list[Any] = [await call(run.aread_config), await call(run.aread_metrics)]
    await call(run.awrite_config, {"model": "llama", "loss_fn": "ppo"})
    for step in range(6):
        await call(run.awrite_metrics, {"loss": 1 / (step + 1), "nan": float("inf")}, step=step)
        await call(run.awrite_timing_spans, step, [{"name": "a", "duration": 1.0}])
        results.append(await call(run.aread_new_metrics))
    await call(run.awrite_checkpoint, CheckpointRecord("000003", batch=3))
    await call(run.awrite_checkpoint, {"name": "final", "final": True, "more": [1]})
    for iteration in (2, 10):
        rows = [{"group_idx": g, "traj_idx": 0, "reward": g / 2} for g in range(3)]
        await call(run.awrite_rollouts, iteration, rows)
        await call(run.awrite_rollouts, iteration, rows, base_name="eval_gsm8k")
        await call(run.awrite_logtree, iteration, {"title": "tree"})
    await call(run.awrite_code_diff, "--- a\n+++ b\n")
    results += [
        await call(run.aread_config),
        [str(row) for row in await call(run.aread_metrics)],
        await call(run.aread_timing),
        await call(run.aread_checkpoints),
        await call(run.aread_checkpoint_records),
        await call(run.afind_checkpoint),
        await call(run.afind_checkpoint, best="loss"),
        await call(run.alist_iterations),
        await call(run.alist_logtrees, 10),
        await call(run.aread_rollouts, 10, base_name="eval_gsm8k"),
        await call(run.aread_single_rollout, 2, 1, 0),
        await call(run.aread_single_rollout, 2, 9, 0),
        await call(run.aread_logtree, 2),
        await call(run.aread_logtree, 3),
        await call(run.atruncate_metrics, 4),
        [str(row) for row in await call(run.aread_metrics_by_step)],
        run.metric_keys(),
    ]
    return [*results, *await everything(storage, call)]


async def everything(storage: Storage, call: Call) -> list[Any]:
    """All files with their bytes, the listings, and the registry's view of them."""
    files = await call(storage.afind, "")
    contents = [(path, await call(storage.aread, path)) for path in files]
    registry = RunRegistry([storage], depth=2)
    await call(registry.arefresh)
    runs = [
        replace(info, last_updated=0.0, newest_file=None, checked_at=0.0)
        for info in await call(registry.aget_runs)
    ]
    return [contents, await call(storage.alist_dir, "sweep/run"), runs]


async def whole_evaluation(storage: Storage, call: Call) -> list[Any]:
    """Everything that an evaluation store does, and what came of it."""
    store = EvalStore(storage, "eval")
    run_id = await call(store.acreate_run, "model", ["gsm8k", "a b"], run_id="first")
    await call(store.acreate_run, "model", ["gsm8k"], checkpoint_name="c", run_id="second")
    for index in range(5):
        turns = [StoredTurn("user", "2+2")]
        trajectory = StoredTrajectory(index, "gsm8k", turns=turns, reward=float(index % 2))
        await call(store.awrite_trajectory, run_id, "gsm8k", trajectory)
    result = BenchmarkResult("gsm8k", 0.4, 5, 2, pass_at_k={1: 0.4, 4: 0.8})
    await call(store.awrite_result, run_id, result)
    await call(store.awrite_summary, run_id, {"gsm8k": result})
    await call(store.afinalize_run, run_id)
    results = [
        [replace(metadata, timestamp="") for metadata in await call(store.alist_runs)],
        replace(await call(store.aread_run, run_id), timestamp=""),
        await call(store.alist_benchmarks, run_id),
        await call(store.aread_result, run_id, "gsm8k"),
        await call(store.aread_trajectories, run_id, "gsm8k", correct_only=True),
        await call(store.aread_single_trajectory, run_id, "gsm8k", 3),
        await call(store.aread_summary, run_id),
    ]
    await call(store.awrite_trajectory, "second", "gsm8k", StoredTrajectory(0, "gsm8k"))  # interrupted
    await call(store.adelete_run, "second")
    await call(store.adelete_run, "second")
    with pytest.raises(NotFoundError):
        await call(store.aread_run, "second")
    return [*results, sorted(await call(storage.afind, "eval"))]


@pytest.mark.anyio
@pytest.mark.parametrize("scenario", [whole_run, whole_evaluation])
async def test_a_bucket_gives_what_a_disk_gives(
    scenario: Callable[[Storage, Call], Coroutine[Any, Any, list[Any]]],
    call: Call,
    bucket: Storage,
    tmp_path: Path,
) -> None:
    """The same calls in the same order have the same results, awaited or not, and leave the same bytes."""
    in_bucket = await scenario(bucket, call)
    on_disk = await scenario(LocalStorage(tmp_path / "disk"), call)
    for one, other in zip(in_bucket, on_disk, strict=True):
        assert one == other


REWRITER = """
import json, sys
from runstore import TrainingRunStore, storage_from_uri

run = TrainingRunStore(storage_from_uri(sys.argv[1], **json.loads(sys.argv[2])))
run.write_rollouts(1, [{"group_idx": 0, "traj_idx": 0, "reward": 2}])
run.write_metrics({"loss": 2.0}, step=1)
"""


def test_another_process_is_seen(bucket: Storage, s3_server: S3Server, s3_uri: str) -> None:
    """What another process rewrites and appends is what the next read gives, caches or not."""
    run = TrainingRunStore(bucket)
    run.write_rollouts(1, [{"group_idx": 0, "traj_idx": 0, "reward": 1}])
    run.write_metrics({"loss": 1.0}, step=0)
    assert run.read_rollouts(1)[0]["reward"] == 1
    assert run.read_rollouts(1) is run.read_rollouts(1)
    assert len(run.read_metrics()) == 1
    arguments = [sys.executable, "-c", REWRITER, s3_uri, json.dumps(s3_server.options())]
    subprocess.run(arguments, check=True, timeout=50)
    assert run.read_rollouts(1)[0]["reward"] == 2
    assert [row["loss"] for row in run.read_metrics()] == [1.0, 2.0]
    run.write_metrics({"loss": 3.0}, step=2)
    assert [row["loss"] for row in run.read_metrics()] == [1.0, 2.0, 3.0]


def test_b20_a_registry_costs_requests_a_run(
    s3_server: S3Server, s3_prefix: str, s3_uri: str, proxy: FaultProxy
) -> None:
    """A refresh makes 3 requests a run at most, never looks into `checkpoints/`, and the second one 1."""
    for number in range(10):
        for name in ("config.json", "metrics.jsonl", "checkpoints.jsonl"):
            s3_server.put(f"{s3_prefix}/run{number}/{name}", b'{"name": "final"}\n')
    with ThreadPoolExecutor(8) as pool:  # more than a page of a listing holds
        paths = [f"{s3_prefix}/run0/checkpoints/{weight}" for weight in range(1_001)]
        list(pool.map(s3_server.put, paths, [b""] * len(paths)))
    storage = storage_from_uri(s3_uri, **s3_server.options(endpoint=proxy.endpoint))
    registry = RunRegistry([storage])
    assert len(registry.get_runs()) == 10
    assert len(proxy.requests) <= 1 + 3 * 10
    assert not any("checkpoints%2F" in request.query for request in proxy.requests)
    s3_server.put(f"{s3_prefix}/new/config.json", b"{}")
    proxy.clear()
    registry.refresh()
    assert len(registry.get_runs()) == 11
    found = Counter(request.operation for request in proxy.requests)
    assert found == {"ListObjectsV2": 1 + 11, "GetObject": 1}


def test_followers_do_not_flush(s3_server: S3Server, s3_prefix: str, s3_uri: str, proxy: FaultProxy) -> None:
    """A follower beside the trainer waits for the flushes that come; its own polls make none."""
    options = s3_server.options(endpoint=proxy.endpoint)
    run = TrainingRunStore(storage_from_uri(s3_uri, flush_interval=3600, **options))

    async def follow() -> list[Any]:
        seen: list[Any] = []
        async with asyncio.timeout(30):
            async for batch in run.afollow_metrics(interval=0.05):
                seen += batch.records
                if len(seen) == 2:
                    return seen
                await run.awrite_metrics({"loss": 1.0}, step=1)
                polls = proxy.count("GetObject") + 10
                await asyncio.to_thread(proxy.wait, "GetObject", times=polls)
                assert proxy.count("PutObject", key=f"{s3_prefix}/metrics.jsonl") == 1
                await run.storage.aflush()
        return seen

    run.write_metrics({"loss": 0.0}, step=0)
    run.storage.flush()
    assert [row["step"] for row in asyncio.run(follow())] == [0, 1]
