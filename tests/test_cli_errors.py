"""The command line when something is missing or wrong: one line, exit code 1, nothing left behind."""

import importlib.util
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

from runstore import __version__
from tests.commands import environment, runstore, tree_of
from tests.scripts import NOBODY, start, write_script

WRONG_URIS = {
    "s3:/bucket/run": "lost a slash",
    "s3://": "names no bucket",
    "s3://key:hunter2@bucket/run": "pass key and secret",
    "sftp://host": "pip install paramiko",
    "no-such://bucket/run": "no storage for the scheme 'no-such://'",
    "file://host/run": "file:///absolute/path",
    "": "is empty",
}


def assert_one_line(stderr: str) -> None:
    assert stderr.startswith("runstore: ")
    assert stderr.endswith("\n")
    assert stderr.count("\n") == 1


READING = [("show",), ("tail",), ("plot", "loss")]


def name_of(command: tuple[str, ...]) -> str:
    return command[0]


@pytest.mark.parametrize(
    ("command", "uri"),
    [*((("demo",), uri) for uri in WRONG_URIS), *((each, "s3:/bucket/run") for each in READING)],
)
def test_a_uri_that_cannot_be_right_is_one_line(command: tuple[str, ...], uri: str, tmp_path: Path) -> None:
    """Each command gives the package's own text for a wrong URI, and creates nothing."""
    done = runstore(command[0], uri, *command[1:], folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr)
    assert WRONG_URIS[uri] in done.stderr
    assert "hunter2" not in done.stderr
    assert tree_of(tmp_path) == {}


@pytest.mark.parametrize("command", READING, ids=name_of)
def test_a_folder_that_is_not_there_is_not_made(command: tuple[str, ...], tmp_path: Path) -> None:
    """Reading commands say that the folder does not exist, and leave it so."""
    done = runstore(command[0], "no/such/run", *command[1:], folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "runstore: no/such/run does not exist\n"
    assert tree_of(tmp_path) == {}


@pytest.mark.parametrize("command", [("show",), ("plot", "loss")], ids=name_of)
def test_a_folder_without_a_run_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    """A folder of other things is no run; nothing is created in it."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"png")
    before = tree_of(tmp_path)
    done = runstore(command[0], "photos", *command[1:], folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr)
    assert done.stderr.startswith("runstore: photos holds no run")
    assert tree_of(tmp_path) == before


def test_a_file_of_a_run_is_no_run(tmp_path: Path) -> None:
    """Someone who names metrics.jsonl itself is told to name its folder."""
    (tmp_path / "metrics.jsonl").write_text('{"step":1}\n')
    done = runstore("show", "metrics.jsonl", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "runstore: metrics.jsonl is a file, and a run is a folder\n"


def test_a_demo_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """Where a file is in the way of the run's folder the error names it."""
    (tmp_path / "file").write_text("in the way")
    done = runstore("demo", "file/run", folder=tmp_path)
    assert done.returncode == 1
    assert_one_line(done.stderr)
    assert "A parent of this path is a file" in done.stderr
    assert list(tree_of(tmp_path)) == ["file"]


# What the command needs is loaded before, as nobody may not be able to read where Python is installed.
AS_NOBODY = f"""
import contextlib, io, sys, tempfile
from runstore import TrainingRunStore
from runstore.cli import main
_, folder, *arguments = sys.argv
with tempfile.TemporaryDirectory() as other:
    TrainingRunStore(other).write_config({{"a": 1}})
    sys.argv[1:] = ["demo", other]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()  # refuses, as a run is there
{NOBODY}
os.chdir(folder)
sys.argv[1:] = arguments
main()
"""


def test_a_demo_where_nothing_may_be_written_says_what_to_do() -> None:
    """A folder that may not be written to: the cause, the path and the hint of every refusal, one line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        script = write_script(folder, AS_NOBODY)
        folder.chmod(0o555)
        for arguments in (("demo",), ("demo", "run")):
            with start(script, folder, *arguments) as process:
                _, error = process.communicate(timeout=50)
            assert process.returncode == 1
            assert_one_line(error)
            assert "Permission denied: check the owner and mode of the file and its folder" in error
            assert str(folder / "run") in error  # the demo's own folder begins so too
        assert list(tree_of(folder)) == [script.name]


def sections(output: str) -> dict[str, list[str]]:
    """The lines of each part that `show` prints, by the first word of its heading."""
    parts = [part.splitlines() for part in output.split("\n\n")[1:]]
    return {part[0].split()[0]: part for part in parts}


def test_a_broken_config_leaves_the_rest_to_be_seen(tmp_path: Path) -> None:
    """A config that is no JSON has its error, one line and no markup, in its part; the others are whole."""
    run = tmp_path / "[red]run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step":1,"loss":0.5}\n')
    for broken in (b'{"a": ', b"[1]", b"\xff"):
        (run / "config.json").write_bytes(broken)
        done = runstore("show", run, folder=tmp_path)
        assert done.returncode == 1
        assert done.stderr == "runstore: 1 of 6 parts could not be read\n"
        shown = sections(done.stdout)
        assert list(shown) == ["Config", "Metrics", "Iterations", "Checkpoints", "Files"]
        assert len(shown["Config"]) == 2
        assert f"{(run / 'config.json').as_uri()} " in shown["Config"][1]
        assert shown["Metrics"][0] == "Metrics  1 record, steps 1 to 1, 1 key"
        assert shown["Metrics"][-1].split() == ["loss", "0.5", "1", "0.5", "0.5", "1"]


def test_files_that_cannot_be_read_leave_the_rest_to_be_seen(tmp_path: Path) -> None:
    """Metrics and checkpoints that the system refuses to open each have their error in their part."""
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "iteration_000003").mkdir()
    for name in ("metrics.jsonl", "checkpoints.jsonl"):
        (tmp_path / name).symlink_to(name)  # a circle, which root cannot open either
    done = runstore("show", tmp_path, folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "runstore: 2 of 6 parts could not be read\n")
    shown = sections(done.stdout)
    assert shown["Config"][1].split() == ["a", "1"]
    for title, name in (("Metrics", "metrics.jsonl"), ("Checkpoints", "checkpoints.jsonl")):
        assert len(shown[title]) == 2
        assert str(tmp_path / name) in shown[title][1]
    assert shown["Iterations"][0].startswith("Iterations  1, number 3")


def test_a_wrong_option_explains_itself(tmp_path: Path) -> None:
    """A usage error is told apart by its exit code."""
    done = runstore("tail", ".", "--last", "many", folder=tmp_path)
    assert done.returncode == 2
    assert "--last" in done.stderr


def test_help_and_version(tmp_path: Path) -> None:
    """`runstore --version`, by `python -m` too, is the installed version, as `runstore.__version__` is."""
    assert __version__ == version("runstore")
    expected = f"runstore {version('runstore')}\n"
    assert runstore("--version", folder=tmp_path).stdout == expected
    module = subprocess.run(
        [sys.executable, "-m", "runstore", "--version"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert module.stdout == expected
    listed = runstore("--help", folder=tmp_path).stdout
    assert all(name in listed for name in ("demo", "show", "tail", "plot"))


def test_the_package_alone_loads_nothing_of_the_command_line(tmp_path: Path) -> None:
    """`import runstore` imports none of the extra's packages, and not the commands."""
    listing = "import runstore, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listing], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "runstore" in loaded
    assert not loaded & {"typer", "rich", "plotille", "runstore.cli"}


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    """Where typer, rich and plotille are not installed: one line with the command that installs them."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("runstore", "orjson"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (site / name).symlink_to(Path(spec.origin).parent, target_is_directory=True)
    done = subprocess.run(
        [sys.executable, "-S", "-c", "from runstore.cli import main; main()"],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(site)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr)
    assert "pip install 'runstore[cli]'" in done.stderr
