"""The command line when something is missing or wrong: one line, exit code 1, nothing left behind."""

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands import environment, runstore, tree_of

WRONG_URIS = {
    "s3://bucket/run": "this version keeps runs on local disks",
    "s3:/bucket/run": "lost a slash",
    "gs://bucket/run": "this version keeps runs on local disks",
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


def test_a_broken_config_is_one_line(tmp_path: Path) -> None:
    """A config that is no JSON names its file."""
    (tmp_path / "config.json").write_text('{"a": ')
    done = runstore("show", tmp_path, folder=tmp_path)
    assert done.returncode == 1
    assert_one_line(done.stderr)
    assert "config.json is not valid JSON" in done.stderr


def test_a_wrong_option_explains_itself(tmp_path: Path) -> None:
    """A usage error is told apart by its exit code."""
    done = runstore("tail", ".", "--last", "many", folder=tmp_path)
    assert done.returncode == 2
    assert "--last" in done.stderr


def test_help_and_version(tmp_path: Path) -> None:
    """`runstore --version` is the installed version; `python -m runstore` is the same command."""
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
