"""The commands on a bucket: the same as on a folder, few requests, and errors of one line."""

import json
import re
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runstore import TrainingRunStore, storage_from_uri
from tests.commands import CommandOutput, runstore, start_runstore
from tests.s3.faults import Status
from tests.s3.proxy import FaultProxy
from tests.s3.server import REGION, S3Server, free_ports
from tests.scripts import run, write_script

STEPS = 80
CHECKPOINTS = 4
RUN_COMMANDS = (("show",), ("tail",), ("plot", "loss"))
LONGEST_FAILURE = 6.0


@pytest.fixture(autouse=True)
def shell(s3_server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user has in the environment: credentials and the endpoint, here the proxy's."""
    admin = s3_server.credentials["admin"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", admin.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", admin.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    monkeypatch.setenv("AWS_REGION", REGION)


@pytest.fixture
def store(s3_server: S3Server, s3_uri: str) -> TrainingRunStore:
    """A run of thirty records in the bucket, written around the proxy."""
    store = TrainingRunStore(storage_from_uri(f"{s3_uri}/run", **s3_server.options()))
    store.write_config({"lr": 0.5})
    for step in range(30):
        store.write_metrics({"loss": 1 / (step + 1)}, step=step)
    store.storage.flush()
    return store


def steps_in(server: S3Server, run: str) -> list[int]:
    """The steps that the bucket has of a run, read around the package."""
    data = server.get(metrics_of(server, run))
    assert data is not None
    return [json.loads(line)["step"] for line in data.splitlines()]


def metrics_of(server: S3Server, run: str) -> str:
    """The key of a run's metrics."""
    return run.removeprefix(f"s3://{server.bucket}/") + "/metrics.jsonl"


def spooled(folder: Path) -> list[Path]:
    """The appends that wait in the spool."""
    return list(folder.glob("**/*.segment"))


# ---- the demo


def test_a_demo_asks_once_a_second_and_uploads_with_each_checkpoint(
    proxy: FaultProxy, s3_server: S3Server, s3_uri: str, tmp_path: Path
) -> None:
    """Its follower costs 60 requests a minute, and no poll causes a flush: four checkpoints, four commits."""
    begin = time.monotonic()
    done = runstore("demo", f"{s3_uri}/demo", folder=tmp_path)
    seconds = time.monotonic() - begin
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"step (\d+)/80 ", done.stdout) == [str(step) for step in range(10, STEPS + 1, 10)]
    assert steps_in(s3_server, f"{s3_uri}/demo") == list(range(STEPS))
    # On a slow machine the flush of every 10 s comes in between.
    in_background = int(seconds / 10)
    for name in ("metrics.jsonl", "timing_spans.jsonl", "checkpoints.jsonl"):
        commits = proxy.count("PutObject", key=f"*/demo/{name}")
        assert CHECKPOINTS <= commits <= CHECKPOINTS + in_background
    # One at once, one a second, and one to read it back.
    assert 3 <= proxy.count("GetObject", key=metrics_of(s3_server, f"{s3_uri}/demo")) <= seconds + 2
    # Nine iterations with two or four files, four checkpoints, config, diff; probes and looks.
    assert len(proxy.requests) <= 65 + seconds + 3 * in_background
    assert all(request.status in {200, 206, 404, 412, 416} for request in proxy.requests)


def test_the_commands_that_a_demo_names_work(s3_uri: str, tmp_path: Path) -> None:
    """Each command at its end shows the run in the bucket, and nothing was left in the folder."""
    output = runstore("demo", f"{s3_uri}/some where", folder=tmp_path).stdout
    show, plot, tail = (shlex.split(line) for line in re.findall(r"^  (runstore .+)$", output, re.MULTILINE))
    shown = runstore(*show[1:], folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "80 records, steps 0 to 79, 8 keys" in shown.stdout
    assert "9, from 0 to 79; train rollouts in 9; train log tree in 9; eval greedy" in shown.stdout
    assert re.search(
        rf"^final +80 +true +{s3_uri}/some where/checkpoints/final\.json *$", shown.stdout, re.MULTILINE
    )
    plotted = runstore(*plot[1:], folder=tmp_path)
    assert (plotted.returncode, plotted.stderr) == (0, "")
    assert "reward/mean  against step" in plotted.stdout
    with start_runstore(*tail[1:], folder=tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
    assert [line.split("  ")[0] for line in lines] == [f"step {step}" for step in range(75, STEPS)]
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]
    again = runstore("demo", f"{s3_uri}/some where", folder=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert "holds a run already" in again.stderr


def test_ctrl_c_leaves_every_step_in_the_bucket(
    s3_server: S3Server, s3_uri: str, spool_folder: Path, tmp_path: Path
) -> None:
    """An interrupted demo uploads what it has before it says that all of it is there."""
    with start_runstore("demo", s3_uri, folder=tmp_path) as process:
        assert process.stdout is not None
        while "step 20/80" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (130, "")
    assert out.endswith(f"Stopped. Every step written so far is in {s3_uri}\n")
    steps = steps_in(s3_server, s3_uri)
    assert steps == list(range(len(steps)))
    assert len(steps) >= 20
    assert spooled(spool_folder) == []


def test_ctrl_c_does_not_claim_what_could_not_be_uploaded(
    proxy: FaultProxy, s3_uri: str, spool_folder: Path, tmp_path: Path
) -> None:
    """Steps that the bucket refuses stay in the spool, and the demo says that instead."""
    proxy.fail(Status(403, "AccessDenied"), operation="PutObject", key="*/metrics.jsonl")
    with start_runstore("demo", s3_uri, folder=tmp_path) as process:
        proxy.wait("PutObject", key="*/iteration_000010/*")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Stopped" not in out
    failed, kept = error.splitlines()
    assert failed.startswith("runstore: [Errno 13] These credentials may not do this")
    assert kept.startswith(f"runstore: warning: appends to {s3_uri}/metrics.jsonl could not be delivered")
    assert str(spool_folder) in kept


def test_what_a_failing_demo_could_not_upload_is_named_and_delivered_later(
    proxy: FaultProxy, s3_server: S3Server, s3_uri: str, spool_folder: Path, tmp_path: Path
) -> None:
    """A right that goes during the run: one line for it, one a file in the spool; `show` delivers them."""
    proxy.fail(Status(403, "AccessDenied"), operation="PutObject", after=20)
    failed = runstore("demo", s3_uri, folder=tmp_path)
    assert failed.returncode == 1
    error, *warned = failed.stderr.splitlines()
    assert error.startswith("runstore: [Errno 13] These credentials may not do this")
    assert warned
    assert all(line.startswith("runstore: warning: appends to s3://") for line in warned)
    assert all(str(spool_folder) in line for line in warned)
    proxy.heal()
    shown = runstore("show", s3_uri, folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    steps = steps_in(s3_server, s3_uri)
    assert steps == list(range(len(steps)))
    assert f"{len(steps)} records, steps 0 to {len(steps) - 1}" in shown.stdout


# ---- looking


def test_tail_shows_records_of_another_process_as_they_are_flushed(
    store: TrainingRunStore, proxy: FaultProxy, s3_server: S3Server, s3_uri: str, tmp_path: Path
) -> None:
    """The last records, then each as it comes; a look a second, 60 requests a minute; Ctrl-C ends it well."""
    with start_runstore("tail", f"{s3_uri}/run", "-n", 2, folder=tmp_path) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [
            "step 28  loss 0.03448\n",
            "step 29  loss 0.03333\n",
        ]
        for step in (30, 31):
            store.write_metrics({"loss": step}, step=step)
            store.storage.flush()
            assert process.stdout.readline() == f"step {step}  loss {step}\n"
        proxy.clear()
        proxy.wait("GetObject", times=4, seconds=20)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (0, "", "")
    assert {(request.operation, request.key) for request in proxy.requests} == {
        ("GetObject", metrics_of(s3_server, f"{s3_uri}/run"))
    }
    first, *_, last = proxy.requests
    assert last.time - first.time > 0.9 * (len(proxy.requests) - 1)


def test_show_and_plot_take_few_requests(
    store: TrainingRunStore, proxy: FaultProxy, s3_uri: str, tmp_path: Path
) -> None:
    """`show` takes ten requests for any number of iterations, `plot` three; none of them writes."""
    for step in range(50):
        store.write_rollouts(step, [{"reward": 1}])
    shown = runstore("show", f"{s3_uri}/run", folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "30 records" in shown.stdout
    assert "50, from 0 to 49" in shown.stdout
    assert len(proxy.requests) <= 10
    assert {request.method for request in proxy.requests} <= {"GET", "HEAD"}
    proxy.clear()
    assert runstore("plot", f"{s3_uri}/run", "loss", folder=tmp_path).returncode == 0
    assert len(proxy.requests) <= 3


def test_ls_takes_five_requests_a_run(
    store: TrainingRunStore, proxy: FaultProxy, s3_server: S3Server, s3_uri: str, tmp_path: Path
) -> None:
    """A listing of the root, then per run a listing, config, checkpoints, and size and end of the metrics."""
    for name in ("b", "c"):
        more = TrainingRunStore(storage_from_uri(f"{s3_uri}/{name}", **s3_server.options()))
        more.write_config({})
        more.write_metrics({"loss": 2.5}, step=7)
        more.write_checkpoint({"name": "final"})
    done = runstore("ls", s3_uri, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, *rows = done.stdout.splitlines()
    assert [row.split()[:5] for row in rows] == [
        ["b", "completed", "7", "loss", "2.5"],
        ["c", "completed", "7", "loss", "2.5"],
        ["run", "running", "29", "loss", "0.03333"],
    ]
    assert all(f"{s3_uri}/" in row for row in rows)
    assert len(proxy.requests) <= 1 + 5 * 3


def test_ls_leaves_out_a_bucket_that_is_not_there(
    store: TrainingRunStore, s3_uri: str, tmp_path: Path
) -> None:
    """A root that cannot be read is named on stderr, and hides no other."""
    done = runstore("ls", "s3://no-such-bucket/runs", s3_uri, folder=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["run"]
    assert re.search(
        r"^runstore: s3://no-such-bucket/runs is left out: .*does not exist", done.stderr, re.MULTILINE
    )


def test_ls_delivers_nothing_and_show_what_a_killed_trainer_left(
    proxy: FaultProxy, s3_server: S3Server, s3_uri: str, spool_folder: Path, tmp_path: Path
) -> None:
    """A list writes nothing; looking at the run itself first uploads what its dead writer left here."""
    script = write_script(
        tmp_path,
        """
        import os, sys
        from runstore import TrainingRunStore
        run = TrainingRunStore(sys.argv[1])
        run.write_config({})
        for step in range(3):
            run.write_metrics({"loss": step}, step=step)
            if step == 0:
                run.storage.flush()
        os._exit(9)
        """,
    )
    assert run(script, s3_uri).returncode == 9
    proxy.clear()
    listed = runstore("ls", s3_uri, folder=tmp_path)
    assert listed.stdout.splitlines()[2].split()[:3] == ["root", "running", "0"]
    assert {request.method for request in proxy.requests} <= {"GET", "HEAD"}
    assert steps_in(s3_server, s3_uri) == [0]
    shown = runstore("show", s3_uri, folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "3 records, steps 0 to 2" in shown.stdout
    assert steps_in(s3_server, s3_uri) == [0, 1, 2]
    assert spooled(spool_folder) == []


# ---- what cannot work


def all_fail(commands: list[tuple[object, ...]], folder: Path) -> list[CommandOutput]:
    """Run commands side by side; each fails in time with nothing but one line on stderr."""

    def timed(command: tuple[object, ...]) -> tuple[CommandOutput, float]:
        begin = time.monotonic()
        done = runstore(*command, folder=folder)
        return done, time.monotonic() - begin

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(timed, commands))
    for done, seconds in outcomes:
        assert (done.returncode, done.stdout) == (1, ""), done.args
        assert re.fullmatch(r"runstore: .+\n", done.stderr), done.args
        assert seconds < LONGEST_FAILURE
    assert {path.name for path in folder.iterdir()} <= {"spool"}  # above all no folder `s3:`
    return [done for done, _ in outcomes]


def looking_at(uri: str) -> list[tuple[object, ...]]:
    """Every command that looks at a run, at this one."""
    return [("ls", uri), *((name, uri, *more) for name, *more in RUN_COMMANDS)]


def test_a_run_that_is_not_there(s3_uri: str, tmp_path: Path) -> None:
    """A place in a bucket with nothing in it is an error that names it, for every command that looks."""
    for done in all_fail(looking_at(f"{s3_uri}/none"), tmp_path):
        assert f"{s3_uri}/none" in done.stderr
        assert re.search(r"there is nothing at|holds no run", done.stderr)


def test_a_bucket_that_is_not_there(s3_server: S3Server, tmp_path: Path) -> None:
    """It is named and not made, by the demo neither."""
    uri = "s3://no-such-bucket/run"
    before = s3_server.buckets()
    for done in all_fail([("demo", uri), *looking_at(uri)], tmp_path):
        assert "The bucket does not exist, and none is created" in done.stderr
        assert uri in done.stderr
    assert s3_server.buckets() == before


def test_an_endpoint_that_is_not_there(s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port: no long waiting, and the endpoint is named."""
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    for done in all_fail([("demo", s3_uri), *looking_at(s3_uri)], tmp_path):
        assert f"No answer from {endpoint}" in done.stderr


@pytest.mark.parametrize("identity", ["wrong_secret", "unknown"])
def test_credentials_that_are_wrong(
    identity: str, s3_server: S3Server, s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's refusal is told as such, without the secret."""
    wrong = s3_server.credentials[identity]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", wrong.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", wrong.secret)
    for done in all_fail([("demo", s3_uri), *looking_at(s3_uri)], tmp_path):
        assert "The server does not take these credentials" in done.stderr
        assert s3_uri in done.stderr
        assert wrong.secret not in done.stderr


def test_no_credentials(s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None at all: the error says how to give them."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for done in all_fail([("demo", s3_uri), *looking_at(s3_uri)], tmp_path):
        assert "No usable credentials" in done.stderr
        assert "AWS_ACCESS_KEY_ID" in done.stderr


@pytest.mark.parametrize("uri", ["s3:/runs/run", "s3://", "s4://runs/run"])
def test_uris_that_cannot_be_right(uri: str, proxy: FaultProxy, tmp_path: Path) -> None:
    """Nothing is asked and nothing is made: no request, no folder."""
    for done in all_fail([("demo", uri), *looking_at(uri)], tmp_path):
        assert "s3://" in done.stderr
    assert proxy.requests == []
