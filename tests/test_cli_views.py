"""`runstore show` and `runstore plot`, on runs as they are found."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore.cli._plot import draw
from tests.commands import command, environment, in_terminal, runstore, tree_of

Make = Callable[[Iterable[dict[str, Any]]], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a run of some metrics, written by the standard library."""

    def write(records: Iterable[dict[str, Any]]) -> Path:
        run = tmp_path / "run"
        run.mkdir()
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return run

    return write


def sample(name: str) -> Path:
    """A file or folder of the sample runs."""
    place = os.environ.get("RUNSTORE_SAMPLE_DATA")
    data = Path(place) if place else Path(__file__).parents[2] / "shared" / "data"
    if not (data / name).exists():
        pytest.skip(f"the sample {name} is not there")
    return data / name


# ---- show


def test_records_of_different_keys_are_summed_up(make: Make, tmp_path: Path) -> None:
    """Each key has its own last value, bounds, step and count, nested objects too; NaN is no bound."""
    run = make(
        [
            {"step": 1, "loss": 4.0, "reward": {"mean": 0.5}},
            {"step": 2, "loss": float("nan")},
            {"step": 3, "loss": 2.0, "note": "warm"},
            {"step": 4, "eval/acc": 1},
            {"no step": True},
        ]
    )
    output = runstore("show", run, folder=tmp_path).stdout
    rows = {line.split("  ")[0]: line.split("  ") for line in output.splitlines()}
    cells = {key: [cell.strip() for cell in row[1:] if cell.strip()] for key, row in rows.items()}
    assert "5 records, steps 1 to 4, 5 keys" in output
    assert re.search(r"^key +last +last at step +lowest +highest +records *$", output, re.MULTILINE)
    assert cells["loss"] == ["2", "3", "2", "4", "3"]
    assert cells["reward/mean"] == ["0.5", "1", "0.5", "0.5", "1"]
    assert cells["eval/acc"] == ["1", "4", "1", "1", "1"]
    assert cells["note"] == ["warm", "3", "1"]
    assert cells["no step"] == ["true", "1"]


def test_malformed_and_unfinished_lines_are_named(tmp_path: Path) -> None:
    """Damage is shown with line, byte and reason, and the records around it are counted."""
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step":1,"a":1}\n<<<<<<< HEAD\n{"step":2,"a":2}\n{"step":3,"a'
    )
    output = runstore("show", tmp_path, folder=tmp_path).stdout
    assert "2 records, steps 1 to 2" in output
    assert "1 malformed line skipped; the latest:\n  line 2, byte 17: not a JSON object\n" in output
    assert "the last line is unfinished: 12 bytes without a newline" in output


def test_text_of_a_run_cannot_steer_the_terminal(make: Make, tmp_path: Path) -> None:
    """Escape codes and markup in keys, values and configs are shown, not obeyed; unicode is kept."""
    run = make(
        [{"step": 1, "größe/中": 1.5, "evil\x1b[2J": "\x1b]0;title\x07", "[bold]": "[red]", "\ud800": 1}]
    )
    (run / "config.json").write_text(json.dumps({"name\x1b[31m": "a\nb\x9b"}))
    done = runstore("show", run, folder=tmp_path, env={"FORCE_COLOR": "1", "NO_COLOR": "1"})
    assert done.returncode == 0
    assert "größe/中" in done.stdout
    assert "[bold]" in done.stdout
    assert r"evil\x1b[2J" in done.stdout
    assert r"\x1b]0;title\x07" in done.stdout
    assert r"a\nb\x9b" in done.stdout
    assert set(re.findall(r"\x1b\[[0-9;]*([A-Za-z])", done.stdout)) <= {"m"}
    assert "\x1b]" not in done.stdout
    assert "\x9b" not in done.stdout


def test_a_run_of_a_config_alone_can_be_shown(tmp_path: Path) -> None:
    """A run that has not begun to log is a run; looking at it creates nothing."""
    (tmp_path / "config.json").write_text('{"model": {"name": "tiny", "layers": [1, 2]}}')
    before = tree_of(tmp_path)
    done = runstore("show", tmp_path, folder=tmp_path)
    assert done.returncode == 0
    assert re.search(r"^model/name +tiny$", done.stdout, re.MULTILINE)
    assert re.search(r"^model/layers +\[1,2\]$", done.stdout, re.MULTILINE)
    assert "Metrics  none" in done.stdout
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "rl_run",
            ["113 records, steps 0 to 112, 40 keys", "Checkpoints  5 of 23", "\nfinal      113   tinker://"],
        ),
        (
            "sft_run",
            [
                "30 records, steps 0 to 29, 11 keys",
                "Qwen/Qwen3-30B-A3B",
                "\nfinal        0       4   tinker://",
            ],
        ),
    ],
)
def test_a_sample_run_is_shown_and_left_as_it_is(name: str, expected: list[str], tmp_path: Path) -> None:
    """Runs that another library wrote: what they hold, and nothing changed."""
    run = sample(name)
    before = tree_of(run)
    done = runstore("show", run, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for text in expected:
        assert text in done.stdout
    assert tree_of(run) == before


@pytest.mark.parametrize(
    ("name", "key", "records"),
    [
        ("diverged_nan.jsonl", "train_loss", 51),
        ("dreamer_metrics.jsonl", "episode/score", 2010),
        ("nested_objects.jsonl", "reward/overall", 49),
        ("resumed_scalars.jsonl", "loss", 307),
    ],
)
def test_a_foreign_metrics_file_is_shown_and_plotted(
    name: str, key: str, records: int, tmp_path: Path
) -> None:
    """Logs of four other trainers, as the metrics of a run."""
    (tmp_path / "metrics.jsonl").write_bytes(sample(name).read_bytes())
    shown = runstore("show", tmp_path, folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"{records:,} records" in shown.stdout
    plotted = runstore("plot", tmp_path, key, folder=tmp_path)
    assert (plotted.returncode, plotted.stderr) == (0, "")
    assert f"{key}  against step" in plotted.stdout


def test_a_place_is_told_without_the_way_there(make: Make, tmp_path: Path) -> None:
    """`show ../run` and `show link/../run` name the folder itself, and the link's `..` is the system's."""
    run = make([{"step": 1}])
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    for folder, place in ((tmp_path / "a", "../run"), (tmp_path, "link/../../run")):
        shown = runstore("show", place, folder=folder)
        assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, run.as_uri())


def test_checkpoints_are_a_table(make: Make, tmp_path: Path) -> None:
    """A row a checkpoint, keys of any record as columns; where paths have no room the newest's are whole."""
    run = make([{"step": 1}])
    path = f"tinker://{'x' * 60}/weights"
    rows = [
        {"name": "000010", "batch": 10, "state_path": f"{path}/10", "loss": 0.25},
        {"name": "[b]", "batch": 20, "epoch": 1, "state_path": f"{path}/20", "sampler_path": "\x1b/s"},
    ]
    (run / "checkpoints.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def shown(columns: str) -> list[list[str]]:
        done = runstore("show", run, folder=tmp_path, env={"COLUMNS": columns})
        lines = done.stdout.partition("Checkpoints")[2].partition("\n\n")[0].splitlines()
        return [line.split() for line in [lines[1], *lines[3:]]]

    assert shown("") == [
        ["name", "batch", "epoch", "loss", "state_path", "sampler_path"],
        ["000010", "10", "0.25", f"{path}/10"],
        ["[b]", "20", "1", f"{path}/20", r"\x1b/s"],
    ]
    assert shown("40") == [
        ["name", "batch", "epoch", "loss"],
        ["000010", "10", "0.25"],
        ["[b]", "20", "1"],
        ["too", "narrow", "for:", "sampler_path,", "state_path"],
        ["state_path", "of", "[b]", f"{path}/20"],
        ["sampler_path", "of", "[b]", r"\x1b/s"],
    ]


# ---- plot


def axis_labels(output: str) -> list[float]:
    """The numbers beside the plot."""
    return [float(label) for label in re.findall(r"^ *(-?[0-9.e+-]+) ┤", output, re.MULTILINE)]


def test_a_plot_covers_the_finite_values_and_no_more(make: Make, tmp_path: Path) -> None:
    """NaN, infinities, null and strings are left out; the axis is made of round numbers."""
    odd = [float("nan"), float("inf"), float("-inf"), None, "text", True]
    run = make([{"step": step, "x": 10 + step} for step in range(50)] + [{"step": 60, "x": x} for x in odd])
    done = runstore("plot", run, "x", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert axis_labels(done.stdout) == [60, 50, 40, 30, 20, 10]
    assert done.stdout.splitlines()[-1].split() == ["0", "10", "20", "30", "40", "50"]


def test_steps_done_again_replace_the_earlier_ones(make: Make, tmp_path: Path) -> None:
    """After a resume the later value of a step counts: the first try, far off, is not in the plot."""
    first = [{"step": step, "loss": 1000.0} for step in range(5, 10)]
    again = [{"step": float(step), "loss": step / 10} for step in range(5, 11)]
    run = make([{"step": step, "loss": 0.0} for step in range(5)] + first + again)
    assert max(axis_labels(runstore("plot", run, "loss", folder=tmp_path).stdout)) <= 2


def test_records_without_a_step_are_plotted_by_their_number(make: Make, tmp_path: Path) -> None:
    """A run that logs no steps has a curve all the same."""
    run = make([{"loss": value} for value in range(20)])
    done = runstore("plot", run, "loss", folder=tmp_path)
    assert "loss  against record" in done.stdout
    assert axis_labels(done.stdout)[0] >= 19


def test_an_unknown_key_lists_those_close_to_it(make: Make, tmp_path: Path) -> None:
    """A typing error gets the likely keys, and no plot of the keys that were right."""
    run = make([{"step": 1, "reward/mean": 1, "reward/std": 2, "optim/lr": 3}])
    done = runstore("plot", run, "reward/mean", "reward/maen", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "runstore: no metric is called 'reward/maen'; close to it: reward/mean, reward/std\n"
    )
    done = runstore("plot", run, "LR", folder=tmp_path)
    assert done.stderr == "runstore: no metric is called 'LR'; close to it: optim/lr\n"
    done = runstore("plot", run, "zzz", folder=tmp_path)
    assert "the first of 3 keys: optim/lr, reward/mean, reward/std" in done.stderr


def test_a_key_without_numbers_says_so(make: Make, tmp_path: Path) -> None:
    """A key that is there, and has nothing to plot, is another error than a wrong key."""
    run = make([{"step": 1, "name": "a", "loss": float("nan")}])
    for key in ("name", "loss"):
        done = runstore("plot", run, key, folder=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"runstore: no value of '{key}' is a finite number\n"


def test_a_key_without_numbers_does_not_hide_the_others(make: Make, tmp_path: Path) -> None:
    """The other keys are plotted as they were asked for, and stderr warns about the ones that are not."""
    run = make([{"step": step, "name": "a", "loss": step, "bad": float("nan"), "x": 1} for step in range(9)])
    done = runstore("plot", run, "x", "bad", "loss", "name", folder=tmp_path)
    assert done.returncode == 0
    assert re.findall(r"^(\S+)  against step$", done.stdout, re.MULTILINE) == ["x", "loss"]
    assert done.stderr == "runstore: warning: no value of 'bad', 'name' is a finite number\n"
    done = runstore("plot", run, "bad", "name", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "runstore: no value of 'bad', 'name' is a finite number\n"


def test_a_terminal_without_unicode_gets_ascii(make: Make, tmp_path: Path) -> None:
    """Where braille cannot be printed the plot is made of plain characters."""
    run = make([{"step": step, "x": step} for step in range(9)])
    done = runstore("plot", run, "x", folder=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "*" in done.stdout


plain = st.integers(-(10**9), 10**9).map(float)
huge = st.floats(-1e299, 1e299)
near = st.integers(10**12, 10**12 + 50).map(float)


@given(
    points=st.lists(st.tuples(plain | huge | near, plain | huge | st.floats(-1, 1)), min_size=1, max_size=30),
    width=st.integers(40, 200),
    height=st.integers(3, 60),
    ascii_only=st.booleans(),
)
def test_any_points_fit_the_width_and_height(
    points: list[tuple[float, float]], width: int, height: int, ascii_only: bool
) -> None:
    """Whatever the numbers, a plot is drawn, and in the place that it was given."""
    lines = draw(sorted(points), width, height, ascii_only=ascii_only)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height + 4
    assert not ascii_only or all(line.isascii() for line in lines)


# ---- terminals, pipes and sizes


def visible(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_tables_and_plots_fit_a_terminal(columns: int, make: Make, tmp_path: Path) -> None:
    """In a terminal there is colour, and no table row or plot line is wider than it."""
    run = make(
        [{"step": step, f"a/rather/long/name/{'x' * 40}": step, "loss": 1 / (step + 1)} for step in range(99)]
    )
    with in_terminal("show", run, folder=tmp_path, columns=columns) as terminal:
        shown = terminal.read_to_end()
    assert "\x1b[" in shown
    table = visible(shown).partition("Metrics")[2].partition("Iterations")[0].splitlines()[1:]
    assert max(map(len, table)) <= columns
    with in_terminal("plot", run, "loss", folder=tmp_path, columns=columns) as terminal:
        plotted = visible(terminal.read_to_end())
    assert max(map(len, plotted.splitlines())) <= columns


METRIC_COLUMNS = ["lowest", "highest", "last at step", "records"]


@pytest.mark.parametrize(("columns", "kept"), [(40, 1), (60, 2), (80, 4), (120, 4)])
def test_names_stay_whole_and_missing_columns_are_named(
    columns: int, kept: int, make: Make, tmp_path: Path
) -> None:
    """A narrow terminal goes without the less important columns, says so, and breaks no name."""
    names = ["optim/grad_norm", "policy/top_chance", "reward/baseline"]
    run = make([{"step": step} | dict.fromkeys(names, -0.12345678) for step in range(99)])
    with in_terminal("show", run, folder=tmp_path, columns=columns) as terminal:
        table = visible(terminal.read_to_end()).partition("Metrics")[2].partition("Iterations")[0]
    lines = [line.strip() for line in table.splitlines()[1:] if line.strip()]
    header = lines[0]
    assert [column for column in METRIC_COLUMNS if column in header] == METRIC_COLUMNS[:kept]
    assert [line.split()[0] for line in lines[2:5]] == names
    assert all(line.split()[1] == "-0.1235" for line in lines[2:5])
    dropped = ", ".join(reversed(METRIC_COLUMNS[kept:]))
    assert " ".join(lines[5:]) == (f"too narrow for: {dropped}" if dropped else "")


def test_names_wider_than_a_terminal_are_folded_at_their_slashes(make: Make, tmp_path: Path) -> None:
    """A name goes on in a further line after a slash; a part that is too long alone ends in an ellipsis."""
    folded, cut = "test/env/all/by_group/ac_tokens_per_turn", f"env/{'long' * 20}"
    run = make([{"step": 1, folded: 0.5, cut: 0.25, "note": "a long text " * 9}])
    output = runstore("show", run, folder=tmp_path, env={"COLUMNS": "40"}).stdout
    rows = output.partition("Metrics")[2].partition("Iterations")[0].splitlines()
    assert all(len(row) <= 40 for row in rows[1:-2])
    words = [row.split() for row in rows[3:]]
    assert words[:2] == [["env/", "0.25"], [f"{('long' * 20)[: len(words[1][0]) - 1]}…"]]
    assert words[2:4] == [["note", "a", "long", "text", "a…"], ["test/env/all/by_group/", "0.5"]]
    assert "".join(row[0] for row in words[3:5]) == folded


@pytest.mark.parametrize(("columns", "width"), [("40", 40), ("90", 90), ("500", 100), ("0", 80), ("x", 80)])
def test_a_piped_plot_is_as_wide_as_columns_says(
    columns: str, width: int, make: Make, tmp_path: Path
) -> None:
    """COLUMNS sets the width of a plot in a pipe, up to the widest; what is no width is passed over."""
    run = make([{"step": step, "loss": step} for step in range(0, 1001, 10)])
    lines = runstore("plot", run, "loss", folder=tmp_path, env={"COLUMNS": columns}).stdout.splitlines()
    assert width * 0.75 < max(map(len, lines)) <= width


def test_no_color_is_respected(make: Make, tmp_path: Path) -> None:
    """With NO_COLOR a terminal gets no colour codes; bold and dim may stay."""
    run = make([{"step": step, "loss": step} for step in range(9)])
    with in_terminal("plot", run, "loss", folder=tmp_path, env={"NO_COLOR": "1"}) as terminal:
        output = terminal.read_to_end()
    codes = {code for codes in re.findall(r"\x1b\[([0-9;]*)m", output) for code in codes.split(";")}
    assert codes <= {"0", "1", "2"}


def test_a_reader_that_goes_away_is_no_error(make: Make, tmp_path: Path) -> None:
    """`runstore show … | head -1`: no traceback, nothing on stderr."""
    run = make([{"step": 1} | {f"key/{number}": number for number in range(5_000)}])
    with subprocess.Popen(
        [command(), "show", str(run)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"{run.as_uri()}\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=20) == 1


# Runs a command and reports the most memory it took. On Linux `ru_maxrss` counts the parent's memory too.
MEASURED = """
import atexit, os, resource, sys
from runstore.cli import main

def report():
    if os.path.exists("/proc/self/status"):
        peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print("kilobytes", peak, file=sys.stderr)

atexit.register(report)
main()
"""


def test_a_large_run_takes_little_memory(tmp_path: Path) -> None:
    """A metrics file of 60 MB is summed up in less memory than it is long."""
    line = '{"step":%d,"loss":0.123456789,"reward/mean":0.5,"text":"' + "x" * 900 + '"}\n'
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.writelines(line % step for step in range(62_000))
    arguments = [sys.executable, "-c", MEASURED, "show", str(tmp_path)]
    done = subprocess.run(arguments, env=environment(), capture_output=True, encoding="utf-8", check=True)
    assert "62,000 records, steps 0 to 61999" in done.stdout
    assert int(done.stderr.split()[-1]) < 100_000


def test_odd_values_do_not_stop_a_command(tmp_path: Path) -> None:
    """A thousand objects inside each other, and the smallest numbers there are, are shown like any others."""
    nested = '{"a":' * 900 + "1" + "}" * 900
    rows = [f'{{"step":{step},"tiny":{step}e-323,"deep":{nested}}}\n' for step in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(rows))
    for arguments in (["show", str(tmp_path)], ["plot", str(tmp_path), "tiny"]):
        done = subprocess.run(
            [command(), *arguments], env=environment(), capture_output=True, encoding="utf-8", check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert "tiny" in done.stdout
