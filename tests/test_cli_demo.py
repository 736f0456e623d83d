"""`runstore demo`: a real run, from its first record to the commands that show it again."""

import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.commands import in_terminal, json_lines, runstore, start_runstore, tree_of

STEPS = 80


class Demo(NamedTuple):
    """What one demo printed, and where its run is."""

    output: str
    run: Path

    @property
    def folder(self) -> Path:
        return self.run.parent


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One demo without arguments, for all tests of this module."""
    folder = tmp_path_factory.mktemp("demo")
    done = runstore("demo", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    [run] = folder.iterdir()
    return Demo(done.stdout, run)


@pytest.fixture
def untouched(demo: Demo) -> Iterator[None]:
    """The test must not change a byte, a time or a right of the run."""
    before = tree_of(demo.folder)
    yield
    assert tree_of(demo.folder) == before


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in records]


def test_every_kind_of_file_is_written(demo: Demo) -> None:
    """Config, metrics, timing, checkpoints, diff, and in iteration folders rollouts and log trees."""
    names = {path.name for path in demo.run.iterdir()}
    iterations = {f"iteration_{step:06d}" for step in (*range(0, STEPS, 10), STEPS - 1)}
    files = {"config.json", "metrics.jsonl", "timing_spans.jsonl", "checkpoints.jsonl", "code.diff"}
    assert names == files | iterations | {"checkpoints"}
    train = {"train_rollout_summaries.jsonl", "train_logtree.json"}
    evaluation = {"eval_greedy_rollout_summaries.jsonl", "eval_greedy_logtree.json"}
    for name in iterations:
        step = int(name.removeprefix("iteration_"))
        expected = train | evaluation if step % 20 == 0 or step == STEPS - 1 else train
        assert {path.name for path in (demo.run / name).iterdir()} == expected


def test_metrics_are_those_of_a_policy_that_learned(demo: Demo) -> None:
    """One record a step, with the evaluation's key in some; the reward is higher at the end."""
    metrics = json_lines(demo.run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(STEPS))
    evaluated = [row["step"] for row in metrics if "test/reward/mean" in row]
    assert evaluated == [0, 20, 40, 60, 79]
    rewards = [row["reward/mean"] for row in metrics]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.2
    assert metrics[0]["policy/entropy"] > 2 * metrics[-1]["policy/entropy"]


def test_rollouts_explain_the_reward(demo: Demo) -> None:
    """The rollouts kept of a step are the ones that its metrics were made of."""
    metrics = json_lines(demo.run / "metrics.jsonl")
    for step in (0, 40, 79):
        rollouts = json_lines(demo.run / f"iteration_{step:06d}" / "train_rollout_summaries.jsonl")
        assert {(row["group_idx"], row["traj_idx"]) for row in rollouts} == {
            (worker, turn) for worker in range(8) for turn in range(8)
        }
        mean = sum(row["total_reward"] for row in rollouts) / len(rollouts)
        assert mean == pytest.approx(metrics[step]["reward/mean"])
        tree = json.loads((demo.run / f"iteration_{step:06d}" / "train_logtree.json").read_text())
        assert len(tree["root"]["children"]) == 8


def test_spans_are_measured_and_workers_overlap(demo: Demo) -> None:
    """Spans hold real times: parts add up to no more than their step, and eight workers run at once."""
    for row in json_lines(demo.run / "timing_spans.jsonl"):
        spans = {span["name"]: span for span in row["spans"]}
        inside = sum(spans[name]["duration"] for name in ("rollouts", "update"))
        assert 0 < inside <= spans["step"]["duration"]
        workers = [span for name, span in spans.items() if name.startswith("rollouts/worker_")]
        assert len(workers) == 8
        assert max(span["wall_start"] for span in workers) < min(span["wall_end"] for span in workers)


def test_the_last_checkpoint_is_final_and_its_weights_are_there(demo: Demo) -> None:
    """Checkpoints name files that exist; the last one is called `final`."""
    rows = json_lines(demo.run / "checkpoints.jsonl")
    assert [row["name"] for row in rows] == ["000020", "000040", "000060", "final"]
    assert rows[-1]["final"] is True
    for row in rows:
        path = Path(row["state_path"].removeprefix("file://"))
        assert len(json.loads(path.read_text())["logits"]) == 10


def test_the_output_tells_the_whole_story(demo: Demo) -> None:
    """Progress, a table, a plot, the run's place and the next commands; plain text in a pipe."""
    assert "\x1b" not in demo.output
    assert re.findall(r"step (\d+)/80  reward 0\.\d\d\n", demo.output) == [
        str(step) for step in range(10, STEPS + 1, 10)
    ]
    assert re.search(r"^key +first +last +best +best at step *$", demo.output, re.MULTILINE)
    assert re.search(r"reward/mean +0\.\d+ +0\.\d+ +0\.\d+ +\d+\n", demo.output)
    assert "iterations   9, from 0 to 79" in demo.output
    assert "000020, 000040, 000060, final" in demo.output
    assert "1.0 ┤" in demo.output
    assert demo.run.as_uri() in demo.output


def test_the_commands_it_names_work(demo: Demo, untouched: None) -> None:
    """Each command that the demo prints at its end shows the run, and changes nothing in it."""
    commands = [shlex.split(line) for line in re.findall(r"^  (runstore .+)$", demo.output, re.MULTILINE)]
    assert [words[1] for words in commands] == ["show", "plot", "tail"]
    for words in commands[:2]:
        done = runstore(*words[1:], folder=demo.folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "reward/mean" in done.stdout
    with start_runstore(*commands[2][1:], folder=demo.folder) as tail:
        assert tail.stdout is not None
        lines = [tail.stdout.readline() for _ in range(5)]
        tail.send_signal(signal.SIGINT)
        assert tail.wait(timeout=20) == 0
    assert [line.split("  ")[0] for line in lines] == [f"step {step}" for step in range(75, 80)]


def test_show_tells_what_the_demo_kept(demo: Demo, untouched: None) -> None:
    """Config, metrics with their last values, steps, iterations, checkpoints."""
    output = runstore("show", demo.run, folder=demo.folder).stdout
    last = json_lines(demo.run / "metrics.jsonl")[-1]
    assert re.search(r"^learning_rate +1\.5$", output, re.MULTILINE)
    assert "80 records, steps 0 to 79, 8 keys" in output
    assert re.search(rf"^reward/mean +{last['reward/mean']:.4g} ", output, re.MULTILINE)
    assert "9, from 0 to 79; train rollouts in 9; train log tree in 9; eval greedy" in output
    assert re.search(r"^final +80 +true +file:///.*/checkpoints/final\.json *$", output, re.MULTILINE)


def test_the_same_seed_gives_the_same_metrics_anywhere(demo: Demo, tmp_path: Path) -> None:
    """A second demo, live in a terminal and at a file URI: every number but the times is the same."""
    place = tmp_path / "some where"
    with in_terminal("demo", place.as_uri(), folder=tmp_path, columns=100) as terminal:
        output = terminal.read_to_end()
        assert terminal.process.returncode == 0
    assert "\x1b[" in output
    assert "80/80" in output
    metrics = without_times(json_lines(demo.run / "metrics.jsonl"))
    assert without_times(json_lines(place / "metrics.jsonl")) == metrics
    rollouts = "iteration_000079/train_rollout_summaries.jsonl"
    assert (place / rollouts).read_bytes() == (demo.run / rollouts).read_bytes()


def test_a_demo_never_touches_a_run_that_is_there(demo: Demo, untouched: None) -> None:
    """A place that holds a run is refused in one line."""
    done = runstore("demo", demo.run, folder=demo.folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"runstore: {demo.run} holds a run already: choose another place for the demo\n"


def test_ctrl_c_leaves_a_run_that_can_be_read(tmp_path: Path) -> None:
    """An interrupted demo ends at once without a traceback, and what it wrote is whole."""
    with in_terminal("demo", "stopped", folder=tmp_path) as terminal:
        terminal.read_until("/80")
        terminal.read_until("reward 0.6")
        terminal.interrupt()
        output = terminal.read_to_end()
        assert terminal.process.returncode == 130
    assert "Traceback" not in output
    assert "Stopped. Every step written so far is in stopped" in output
    steps = [row["step"] for row in json_lines(tmp_path / "stopped" / "metrics.jsonl")]
    assert steps == list(range(len(steps)))
    assert runstore("show", "stopped", folder=tmp_path).returncode == 0


def test_the_folder_of_a_demo_is_no_part_of_a_clone() -> None:
    """The repository's own rules have git ignore the folder that a demo without arguments makes."""
    rules = (Path(__file__).parents[1] / ".gitignore").read_text().splitlines()
    assert "runstore-demo-*/" in rules


def test_two_demos_in_one_second_take_two_folders(tmp_path: Path) -> None:
    """Demos started at the same time in one folder each get a folder of their own."""
    with start_runstore("demo", folder=tmp_path) as one, start_runstore("demo", folder=tmp_path) as two:
        first_lines = set()
        for process in (one, two):
            assert process.stdout is not None
            first_lines.add(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)
    assert len(first_lines) == len(list(tmp_path.iterdir())) == 2
