"""Connections and options: threads, loops, forks and pickles share what they may; nothing is left open."""

import asyncio
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from runstore import (
    EventLoopError,
    FsspecStorage,
    InvalidInputError,
    LocalStorage,
    NotFoundError,
    S3Storage,
    TrainingRunStore,
    storage_from_uri,
)
from runstore.storage._bridge import call_on_io_loop, spawn_on_io_loop
from tests.s3.place import METRICS, Place
from tests.s3.proxy import FaultProxy
from tests.s3.server import REGION, S3Server
from tests.scripts import run, write_script

DEV = ("-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning")


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, proxy: FaultProxy, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, proxy.endpoint, spool_folder)


# ---- ranges


RANGES: tuple[tuple[int, int | None], ...] = ((0, None), (10, None), (11, None), (5, 100), (10, 5), (5, 0))
RANGES += ((0, 0), (0, 1), (3, 4), (9, 1), (9, 2), (11, 0), (2**40, 7), (0, 2**40))


@pytest.mark.parametrize("data", [b"0123456789", b""])
def test_d03_ranges_are_those_of_a_local_file(place: Place, tmp_path: Path, data: bytes) -> None:
    """At the end, past it, empty, longer than the file: a bucket and a disk give the same bytes."""
    for storage in (place.storage(), LocalStorage(tmp_path / "local")):
        storage.write("f", data)
        for offset, length in RANGES:
            expected = data[offset:] if length is None else data[offset : offset + length]
            assert storage.read_range("f", offset, length) == expected
            with pytest.raises(NotFoundError):
                storage.read_range("missing", offset, length)
        for wrong in ((-1, None), (0, -1), (-1, 5), (-5, -1)):
            with pytest.raises(InvalidInputError, match="negative"):
                storage.read_range("f", *wrong)


# ---- loops and threads


async def use(storage: FsspecStorage, name: str) -> None:
    """Read, write and append, on whatever loop this runs."""
    await storage.awrite(name, b"1")
    await storage.aappend(f"{name}.jsonl", b"2\n")
    await storage.aflush()
    assert await storage.aread(name) == b"1"


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop])
def test_d07_one_storage_on_one_loop_after_another(
    place: Place, loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    """A storage of a module: `asyncio.run` twice; sync, awaited, sync again."""
    storage = place.storage()
    for number in range(2):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(use(storage, f"run{number}"))
        assert storage.read(f"run{number}.jsonl") == b"2\n"
        storage.append_lines("sync.jsonl", b"%d\n" % number)
    storage.flush()
    assert place.data("sync.jsonl") == b"0\n1\n"


def test_d07_one_storage_in_threads_with_loops_of_their_own(place: Place, proxy: FaultProxy) -> None:
    """Two threads with a loop each and two without use it at the same time."""
    storage = place.storage()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  shown below, in the test's own thread
            failures.append(error)

    def awaiting(name: str) -> None:
        async def several() -> None:
            await asyncio.gather(*[use(storage, f"{name}{number}") for number in range(5)])

        asyncio.run(several())

    def calling(name: str) -> None:
        for number in range(5):
            storage.write(f"{name}{number}", b"1")
            storage.append(f"{name}{number}.jsonl", b"2\n")
            assert storage.read(f"{name}{number}.jsonl") == b"2\n"

    works: list[Callable[[str], None]] = [awaiting, calling, awaiting, calling]
    threads = [
        threading.Thread(target=guarded, args=(lambda work=work, name=name: work(name),))
        for work, name in zip(works, "abcd", strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(storage.list_dir("")) == 40
    assert proxy.connections <= 20


@pytest.mark.anyio
async def test_e01_sync_calls_work_inside_a_running_loop(place: Place) -> None:
    """A notebook's cell, or an async program that calls the sync twins: they block their caller alone."""
    storage = place.storage()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(beat())
    run = TrainingRunStore(storage)
    run.write_config({"lr": 1})
    for step in range(3):
        run.write_metrics({"loss": 0.5}, step=step)
    run.write_checkpoint({"name": "final"})
    assert run.read_config() == {"lr": 1}
    assert [row["step"] for row in run.read_metrics()] == [0, 1, 2]
    assert storage.list_dir("") == ["checkpoints.jsonl", "config.json", METRICS]
    follower = run.follow_metrics()
    assert [row["step"] for row in next(follower).records] == [0, 1, 2]
    follower.close()
    storage.close()
    assert beats == 0
    await asyncio.sleep(0.01)
    assert beats > 0
    other.cancel()


SYNC_CALLS: dict[str, Callable[[S3Storage], object]] = {
    "aread": lambda storage: storage.read("f"),
    "aread_range": lambda storage: storage.read_range("f", 0),
    "awrite": lambda storage: storage.write("f", b""),
    "astat": lambda storage: storage.stat("f"),
    "alist_dir": lambda storage: storage.list_dir(""),
    "aremove": lambda storage: storage.remove("f"),
    "aflush": lambda storage: storage.flush(),
    "aclose": lambda storage: storage.close(),
    "aread_metrics": lambda storage: TrainingRunStore(storage).read_metrics(),
    "awrite_config": lambda storage: TrainingRunStore(storage).write_config({}),
    "awrite_checkpoint": lambda storage: TrainingRunStore(storage).write_checkpoint({"name": "x"}),
}


@pytest.mark.parametrize("twin", SYNC_CALLS)
def test_e02_a_sync_call_on_the_io_loop_names_its_twin(place: Place, proxy: FaultProxy, twin: str) -> None:
    """It would wait for itself: refused at once, with the name to await."""
    storage = place.storage()

    async def on_the_loop() -> None:
        SYNC_CALLS[twin](storage)

    with pytest.raises(EventLoopError, match=rf"await {twin}\("):
        spawn_on_io_loop(on_the_loop).result(5)
    assert proxy.requests == []


# ---- connections


def test_d08_all_storages_of_an_endpoint_share_a_pool(place: Place, proxy: FaultProxy) -> None:
    """100 reads by turns of several storages and copies take one connection; 200 at once at most 64."""
    place.put(b"1", "f")
    first = place.storage()
    storages = [first, place.storage(), pickle.loads(pickle.dumps(first)), TrainingRunStore(first).storage]
    for number in range(100):
        assert storages[number % 4].read("f") == b"1"
    assert proxy.connections == 1

    async def many() -> None:
        await asyncio.gather(*[storages[number % 4].aread("f") for number in range(200)])

    asyncio.run(many())
    assert 1 < proxy.connections <= 64


def test_d08_a_copy_that_is_closed_closes_nobody_elses_connections(place: Place, proxy: FaultProxy) -> None:
    """Only when the last one is closed they end; a storage that was closed works again, over a new one."""
    place.put(b"1", "f")
    first, second = place.storage(), place.storage()
    first.read("f")
    second.read("f")
    pickle.loads(pickle.dumps(first)).close()
    first.close()
    assert second.read("f") == b"1"
    assert proxy.connections == 1
    second.close()
    second.close()
    assert second.read("f") == b"1"
    assert proxy.connections == 2


CLEAN = """
import asyncio, gc, json, logging, sys
from runstore import storage_from_uri

logging.getLogger("asyncio").setLevel(logging.ERROR)  # on a busy machine everything is slow

storage = storage_from_uri(sys.argv[1], **json.loads(sys.argv[2]))

async def reads():
    for _ in range(100):
        assert await storage.aread("f") == b"1"

async def leaving():
    async with storage:
        await reads()

async def cancelling():
    await storage.aread("f")
    for _ in range(10):
        read = asyncio.ensure_future(storage.aread("f"))
        await asyncio.sleep(0.001)
        read.cancel()
        await asyncio.wait([read])
    assert await storage.aread("f") == b"1"

if sys.argv[3] == "close":
    for _ in range(100):
        assert storage.read("f") == b"1"
    storage.close()
elif sys.argv[3] == "async with":
    asyncio.run(leaving())
elif sys.argv[3] == "cancelled":
    asyncio.run(cancelling())
    storage.close()
elif sys.argv[3] == "no close":
    asyncio.run(reads())
elif sys.argv[3] == "dropped":
    asyncio.run(reads())
    del storage
gc.collect()
"""


@pytest.mark.parametrize("way", ["close", "async with", "cancelled", "no close", "dropped"])
def test_d08_nothing_is_left_open(place: Place, proxy: FaultProxy, tmp_path: Path, way: str) -> None:
    """With warnings as errors a script says nothing, closed or not; its reads share connections."""
    place.put(b"1", "f")
    done = run(write_script(tmp_path, CLEAN), place.uri, json.dumps(place.options()), way, options=DEV)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert proxy.connections <= (12 if way == "cancelled" else 1)


# ---- forks


CHILDREN = """
import json, multiprocessing, os, sys
from runstore import storage_from_uri

def work(storage, number):
    assert storage.read("there") == b"1"
    storage.append_lines("metrics.jsonl", b'{"step": %d}\\n' % number)
    return os.getpid()

def forked(storage):
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            work(storage, number)
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0

def main():
    storage = storage_from_uri(sys.argv[1], flush_interval=3600, **json.loads(sys.argv[2]))
    storage.write("there", b"1")
    storage.append_lines("metrics.jsonl", b'{"step": -1}\\n')
    if sys.argv[3] == "os.fork":
        forked(storage)
    else:
        context = multiprocessing.get_context(sys.argv[3])
        with context.Pool(4) as pool:
            pids = pool.starmap(work, [(storage, number) for number in range(4)], chunksize=1)
        assert os.getpid() not in pids
    assert storage.read("there") == b"1"
    storage.append_lines("metrics.jsonl", b'{"step": -2}\\n')
    print(sorted(json.loads(line)["step"] for line in storage.read("metrics.jsonl").splitlines()))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "os.fork"])
def test_e03_children_work_and_the_parent_is_unharmed(place: Place, tmp_path: Path, method: str) -> None:
    """After calls and with an append pending: four children read and append, then the parent does.

    Every record arrives once, those of children that ended without delivering too; nothing is printed.
    """
    script = write_script(tmp_path, CHILDREN)
    done = run(script, place.uri, json.dumps(place.options()), method, options=DEV)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [-2, -1, 0, 1, 2, 3]
    assert sorted(place.steps()) == [-2, -1, 0, 1, 2, 3]
    assert place.spooled() == []


# ---- options


@pytest.fixture(
    params=["argument", "client_kwargs", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "profile", "services"]
)
def named(
    request: pytest.FixtureRequest, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The ways to name an endpoint."""
    way: str = request.param
    options = {"key": "AKIDADMIN", "secret": place.server.credentials["admin"].secret}
    kwargs = {"region_name": REGION}
    if way == "argument":
        return {**options, "endpoint_url": place.endpoint, "client_kwargs": kwargs}
    if way == "client_kwargs":
        return {**options, "client_kwargs": {**kwargs, "endpoint_url": place.endpoint}}
    if way.startswith("AWS"):
        monkeypatch.setenv(way, place.endpoint)
        return {**options, "client_kwargs": kwargs}
    lines = [f"aws_access_key_id = {options['key']}", f"aws_secret_access_key = {options['secret']}"]
    lines.append(f"region = {REGION}")
    if way == "profile":
        lines.append(f"endpoint_url = {place.endpoint}")
    else:
        lines += ["services = own", "[services own]", "s3 =", f"  endpoint_url = {place.endpoint}"]
    config = tmp_path / "config"
    config.write_text("\n".join(["[profile lab]", *lines]))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return {"profile": "lab"}


ELSEWHERE = """
import pickle, sys
storage = pickle.load(open(sys.argv[1], "rb"))
storage.append_lines("metrics.jsonl", b'{"step": 1}\\n')
assert storage.read("f") == b"1"
"""


def test_d11_an_endpoint_is_found_however_it_is_named(
    place: Place, named: dict[str, Any], proxy: FaultProxy, tmp_path: Path
) -> None:
    """By argument, environment or profile; its name, which the spool goes by, is the same for all."""
    storage = storage_from_uri(place.uri, **named)
    assert isinstance(storage, S3Storage)
    with storage:  # a later one with equal options may mean another endpoint
        storage.write("f", b"1")
    assert place.data("f") == b"1"
    assert storage._files.store() == f"{place.endpoint}#{place.server.bucket}"


@pytest.mark.parametrize("named", ["argument", "profile"], indirect=True)
def test_d11_a_pickled_copy_finds_it_in_another_process(
    place: Place, named: dict[str, Any], proxy: FaultProxy, tmp_path: Path
) -> None:
    """It reads and appends there, at the same endpoint."""
    storage = storage_from_uri(place.uri, **named)
    place.put(b"1", "f")
    copy = tmp_path / "pickled"
    copy.write_bytes(pickle.dumps(storage))
    done = run(write_script(tmp_path, ELSEWHERE), copy)
    assert (done.returncode, done.stderr) == (0, "")
    assert proxy.count("PutObject", key=place.key()) == 1
    assert place.steps() == [1]


async def config_of(storage: S3Storage) -> Any:
    client = await storage._files._client.connect()  # type: ignore[attr-defined]
    return client.meta.config


def test_d11_options_reach_the_client_and_survive_pickling(place: Place) -> None:
    """Path-style addresses, checksums only where required, a proxy's user agent: as s3fs takes them."""
    config = {
        "s3": {"addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "user_agent_extra": "of-a-test",
    }
    storage = place.storage(config_kwargs=config)
    for each in (storage, pickle.loads(pickle.dumps(storage))):
        assert each.identity() == storage.identity() != place.storage().identity()
        found = call_on_io_loop(config_of, each)
        assert found.s3["addressing_style"] == "path"
        assert found.request_checksum_calculation == "when_required"
        assert found.response_checksum_validation == "when_required"
        assert "of-a-test" in found.user_agent_extra
        assert found.user_agent.startswith("runstore ")
        assert found.max_pool_connections == 64
        each.write("f", b"1")
        assert each.read("f") == b"1"


def test_d11_additional_parameters_go_with_every_write(place: Place) -> None:
    """`s3_additional_kwargs` count for whole files and for appends, below 5 MiB and above."""
    storage = place.storage(s3_additional_kwargs={"CacheControl": "max-age=5", "ContentType": "text/x-own"})
    storage.write("f", b"1")
    storage.append("small", b"1")
    storage.append("large", b"1" * (38 * 1024 * 1024))
    storage.flush()
    storage.append("large", b"2")
    storage.flush()
    for name in ("f", "small", "large"):
        head = place.server.head(place.key(name))
        assert (head["CacheControl"], head["ContentType"]) == ("max-age=5", "text/x-own")


def test_an_object_keeps_its_headers_when_appended_to(place: Place) -> None:
    """Content type and metadata that another tool gave it go on with it, below 5 MiB and above."""
    given: dict[str, Any] = {"ContentType": "application/x-ndjson", "Metadata": {"own": "1"}}
    for name, size in (("small", 1), ("large", 6 * 1024 * 1024)):
        place.server.put(place.key(name), b"1" * size, **given)
        storage = place.storage()
        storage.append(name, b"2")
        storage.flush()
        head = place.server.head(place.key(name))
        assert head["ContentType"] == "application/x-ndjson"
        assert head["Metadata"]["own"] == "1"
        assert head["ContentLength"] == size + 1
