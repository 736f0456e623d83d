"""`runstore tail`: metrics as they come, until Ctrl-C."""

import re
import selectors
import signal
import subprocess
from pathlib import Path

import pytest

from runstore import TrainingRunStore
from tests.commands import in_terminal, runstore, start_runstore, tree_of


@pytest.fixture
def store(tmp_path: Path) -> TrainingRunStore:
    """A run of thirty records."""
    store = TrainingRunStore(tmp_path / "run")
    for step in range(30):
        store.write_metrics({"loss": 1 / (step + 1), "name": "a"}, step=step)
    return store


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def stop(process: subprocess.Popen[str]) -> None:
    """Ctrl-C ends it with exit code 0, and it has nothing more to say."""
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (0, "", "")


def test_the_last_records_come_first_then_the_new_ones(store: TrainingRunStore, tmp_path: Path) -> None:
    """Ten records to begin with; each later one as it is written, none missed or repeated."""
    with start_runstore("tail", "run", folder=tmp_path) as process:
        assert read_lines(process, 10) == [f"step {n}  loss {1 / (n + 1):.4g}  name a" for n in range(20, 30)]
        for step in range(30, 35):
            store.write_metrics({"loss": step}, step=step)
            assert read_lines(process, 1) == [f"step {step}  loss {step}"]
        stop(process)


def test_it_can_begin_anywhere_and_show_some_keys_only(store: TrainingRunStore, tmp_path: Path) -> None:
    """`-n` says how many of the records so far, `-k` which keys."""
    with start_runstore("tail", "run", "-n", 2, "-k", "loss", "-k", "gone", folder=tmp_path) as process:
        assert read_lines(process, 2) == ["step 28  loss 0.03448", "step 29  loss 0.03333"]
        stop(process)
    with start_runstore("tail", "run", "-n", 1000, folder=tmp_path) as process:
        assert read_lines(process, 30)[0].startswith("step 0 ")
        stop(process)


def test_a_mistyped_key_is_told_and_waited_for(store: TrainingRunStore, tmp_path: Path) -> None:
    """A key that no record has yet is a warning with those close to it; records without it are not shown."""
    with start_runstore("tail", "run", "-k", "los", folder=tmp_path) as process:
        assert process.stderr is not None
        expected = "runstore: warning: so far no metric is called 'los'; close to it: loss\n"
        assert process.stderr.readline() == expected
        store.write_metrics({"loss": 1}, step=30)
        store.write_metrics({"los": 2}, step=31)
        assert read_lines(process, 1) == ["step 31  los 2"]
        stop(process)


def test_only_what_comes(store: TrainingRunStore, tmp_path: Path) -> None:
    """`-n 0` starts at the end: the first record shown is one written after that."""
    with start_runstore("tail", "run", "-n", 0, folder=tmp_path) as process:
        assert process.stdout is not None
        # It says nothing when it is ready, so records are written until one of them is shown.
        shown = ""
        step = 30
        while not shown:
            store.write_metrics({"loss": 0}, step=step)
            step += 1
            shown = line_within(process, 0.05)
        assert int(shown.split()[1]) >= 30
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


def line_within(process: subprocess.Popen[str], seconds: float) -> str:
    with selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(seconds) else ""


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    """The folder is enough; nothing is created in it, and the first record is shown."""
    (tmp_path / "run").mkdir()
    before = tree_of(tmp_path)
    with start_runstore("tail", "run", folder=tmp_path) as process:
        assert line_within(process, 0.5) == ""
        assert tree_of(tmp_path) == before
        TrainingRunStore(tmp_path / "run").write_metrics({"loss": 1.5}, step=0)
        assert read_lines(process, 1) == ["step 0  loss 1.5"]
        stop(process)


def test_a_replaced_file_is_announced(store: TrainingRunStore, tmp_path: Path) -> None:
    """After a resume cut the file, what is left is shown anew below a line that says so."""
    with start_runstore("tail", "run", "-n", 1, folder=tmp_path) as process:
        assert read_lines(process, 1)[0].startswith("step 29 ")
        store.truncate_metrics(2)
        announced, *rest = read_lines(process, 3)
        assert "replaced" in announced
        assert [line.split("  ")[0] for line in rest] == ["step 0", "step 1"]
        stop(process)


def test_a_record_is_one_line_of_the_terminal(tmp_path: Path) -> None:
    """Long records are cut to the width; Ctrl-C leaves the cursor on a line of its own."""
    store = TrainingRunStore(tmp_path / "run")
    store.write_metrics({f"key/{n}": n for n in range(100)} | {"text": "a\nb\x1b[2J"}, step=1)
    store.write_metrics({"中" * 100: 1}, step=2)
    with in_terminal("tail", "run", folder=tmp_path, columns=60) as terminal:
        terminal.read_until("step 2")
        terminal.interrupt()
        output = terminal.read_to_end()
        assert terminal.process.returncode == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).replace("\r", "").split("\n")
    assert [line[:6] for line in lines if line] == ["step 1", "step 2"]
    assert len(lines[0]) == 60
    assert lines[0].endswith("…")
    assert "Traceback" not in output


def test_a_reader_that_goes_away_ends_it(store: TrainingRunStore, tmp_path: Path) -> None:
    """`runstore tail … | head -1`: the next record ends it, without a traceback."""
    with start_runstore("tail", "run", "-n", 1, folder=tmp_path) as process:
        read_lines(process, 1)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        store.write_metrics({"loss": 0}, step=30)
        assert process.wait(timeout=20) == 1
        assert process.stderr.read() == ""


def test_damage_is_mentioned_once(store: TrainingRunStore, tmp_path: Path) -> None:
    """Malformed lines among those read are reported on stderr, apart from the records."""
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("<<<<<<< HEAD\n")
    with start_runstore("tail", "run", "-n", 1, folder=tmp_path) as process:
        assert process.stderr is not None
        assert read_lines(process, 1)[0].startswith("step 29 ")
        assert "skipped 1 malformed line" in process.stderr.readline()
        stop(process)


def test_no_records_are_read_of_a_folder_that_goes(tmp_path: Path) -> None:
    """A file where the folder should be is an error, as for the other commands."""
    (tmp_path / "file").write_text("")
    done = runstore("tail", "file", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "runstore: file is a file, and a run is a folder\n")
