"""The README does what it says: its code runs, its commands work, its files are there."""

import inspect
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import runstore as package
from runstore.cli._place import LOCAL_POLL_SECONDS, REMOTE_POLL_SECONDS
from runstore.remote._appended import EXIT_SECONDS, FLUSH_SECONDS
from runstore.remote._retry import BUDGET_SECONDS
from runstore.remote._s3_client import FIRST_BUDGET_SECONDS
from runstore.remote._s3_commit import COPY_PART, SMALLEST_PART
from tests import commands, scripts

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def text() -> str:
    return README.read_text()


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The code blocks of a language, each with the number of its first line."""
    return [
        (text[: match.start(1)].count("\n"), match[1])
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def commands_in(text: str) -> list[list[str]]:
    """The arguments of every `runstore` command, but for `tail`, which has no end."""
    lines = [line for _, block in blocks(text, "sh") for line in block.splitlines()]
    found = [line.partition("#")[0].split() for line in lines]
    return [words[1:] for words in found if words[:1] == ["runstore"] and words[1] != "tail"]


def program(text: str, python: Sequence[tuple[int, str]]) -> str:
    """Blocks as one program, each at the lines where it is in the README, for the traceback's sake."""
    lines = [""] * text.count("\n")
    for first, code in python:
        code_lines = code.splitlines()
        lines[first : first + len(code_lines)] = code_lines
    return "\n".join(lines)


def on_a_bucket(block: str) -> bool:
    """Whether a block needs a server: tests/s3/test_s3_readme.py runs those."""
    return "s3://" in block


def test_every_python_block_runs(text: str, tmp_path: Path) -> None:
    """In a new folder, in order, as one program, with warnings as errors; then the commands on its run."""
    python = blocks(text, "python")
    assert len(python) == len(re.findall("^```python$", text, re.MULTILINE)) >= 5
    local = [(first, code) for first, code in python if not on_a_bucket(code)]
    assert len(local) == len(python) - 2
    script = scripts.write_script(tmp_path, program(text, local), "README.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    output = done.stdout.splitlines()
    assert output[:5] == ["tiny", "['final']", "97 0.01020408163265306", "98 0.010101010101010102", "99 0.01"]
    assert output[5] == "[{'step': 100, 'loss': 0.009}]"
    assert any(re.fullmatch(r"\d+ new records", line) for line in output)
    assert "resumed at 10 after 9" in output
    assert "first completed as it has a final checkpoint" in output
    assert "{'gsm8k': 1.0} 1" in output
    assert "event: metrics" in output
    for words in commands_in(text):
        if not on_a_bucket(words[-1]):
            shown = commands.runstore(*words, folder=tmp_path)
            assert (shown.returncode, shown.stderr) == (0, ""), words


def test_it_names_the_two_commands_to_begin_with(text: str) -> None:
    """One line to see it work, and one to run the tests, each a block of its own."""
    shell = [block for _, block in blocks(text, "sh")]
    assert "pip install '.[cli]' && runstore demo\n" in shell
    assert "pip install nox && nox -s tests\n" in shell


def test_names_of_the_other_library_are_here(text: str) -> None:
    """What the README says to import instead can be imported."""
    [(_, diff)] = blocks(text, "diff")
    names = re.search(r"^\+from runstore import (.+)$", diff, re.MULTILINE)
    assert names is not None
    assert set(names[1].split(", ")) <= set(package.__all__)


def test_numbers_it_gives_for_buckets_are_those_of_the_code(text: str) -> None:
    """Intervals, budgets and the requests and dollars that follow from them."""
    a_day, price = 24 * 60 * 60 / FLUSH_SECONDS, 0.005 / 1000
    for stated in (
        f"after `flush_interval` seconds, {FLUSH_SECONDS:g} by default",
        f"ends by itself, which waits for the server for {EXIT_SECONDS:g} seconds at most",
        f"trying for {BUDGET_SECONDS:g} seconds, or {FIRST_BUDGET_SECONDS:g} at an endpoint",
        f"Below {SMALLEST_PART // 2**20} MiB a flush is one PUT",
        f"costs {a_day:,.0f} requests a day, ${a_day * price:.2f} at AWS's list price of $0.005 per 1,000",
        f"four requests (create, copy, upload, complete; from {2 * COPY_PART // 2**20} MiB on",
        f"${4 * a_day * price:.2f} a day",
        f"`storage_from_uri(…, flush_interval=60)` makes it {24 * 60:,}",
        f"{60 / LOCAL_POLL_SECONDS:.0f} a minute for `follow_metrics()`, {60 // 15} with `interval=15`",
        f"the demo look once a second, {60 / REMOTE_POLL_SECONDS:.0f} a minute",
    ):
        assert stated in " ".join(text.split())
    follow = inspect.signature(package.TrainingRunStore.follow_metrics)
    assert follow.parameters["interval"].default == LOCAL_POLL_SECONDS


def test_files_and_folders_it_names_exist(text: str) -> None:
    """Every path of the repository in the README is there."""
    paths = re.findall(r"`((?:runstore|tests|benchmarks)/[\w/.]*)`", text)
    assert len(paths) > 8
    missing = [path for path in paths if not (README.parent / path).exists()]
    assert missing == []


def test_there_is_a_place_for_the_measured_ratios(text: str) -> None:
    """The benchmark command finds its two marks, once and in order."""
    assert len(re.findall(r"<!-- benchmarks:start -->\n.+\n<!-- benchmarks:end -->", text, re.DOTALL)) == 1
