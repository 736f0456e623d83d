"""The README does what it says: its code runs, its commands work, its files are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import runstore as package
from tests import commands

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


def test_every_python_block_runs(text: str, tmp_path: Path) -> None:
    """In a new folder, in order, as one program, with warnings as errors; then the commands on its run."""
    python = blocks(text, "python")
    assert len(python) == len(re.findall("^```python$", text, re.MULTILINE)) >= 5
    lines = [""] * text.count("\n")
    for first, code in python:  # at the lines where they are in the README, for the traceback's sake
        code_lines = code.splitlines()
        lines[first : first + len(code_lines)] = code_lines
    script = tmp_path / "README.py"
    script.write_text("\n".join(lines))
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
    assert "resumed at 11 after 10" in output
    assert "first completed as it has a final checkpoint" in output
    assert "{'gsm8k': 1.0} 1" in output
    assert "event: metrics" in output
    for first, block in blocks(text, "sh"):
        for command in block.splitlines():
            words = command.partition("#")[0].split()
            if words[:1] == ["runstore"] and words[1] != "tail":  # which has no end
                shown = commands.runstore(*words[1:], folder=tmp_path)
                assert (shown.returncode, shown.stderr) == (0, ""), (first, command)


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


def test_what_is_not_there_yet_is_said(text: str) -> None:
    """Names that the README calls missing are missing: it must change when they come."""
    missing = re.search(r"(`\w+`(?:, `\w+`)* and `\w+`) are\snot in this version", text)
    assert missing is not None
    assert not set(re.findall(r"`(\w+)`", missing[1])) & set(package.__all__)


def test_files_and_folders_it_names_exist(text: str) -> None:
    """Every path of the repository in the README is there."""
    paths = re.findall(r"`((?:runstore|tests|benchmarks)/[\w/.]*)`", text)
    assert len(paths) > 8
    missing = [path for path in paths if not (README.parent / path).exists()]
    assert missing == []


def test_there_is_a_place_for_the_measured_ratios(text: str) -> None:
    """The benchmark command finds its two marks, once and in order."""
    assert len(re.findall(r"<!-- benchmarks:start -->\n.+\n<!-- benchmarks:end -->", text, re.DOTALL)) == 1
