"""The installed `runstore` command, run as a user runs it: in a process of its own."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "CommandOutput",
    "Terminal",
    "in_terminal",
    "json_lines",
    "runstore",
    "start_runstore",
    "tree_of",
]

# What decides over colours and widths, and may be set where the tests run.
TERMINAL_SETTINGS = (
    "COLUMNS",
    "LINES",
    "FORCE_COLOR",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "TERM",
)

CommandOutput = subprocess.CompletedProcess[str]

# A shell that starts jobs in the background has them ignore Ctrl-C, and what they start inherits that.
WITH_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def command() -> str:
    """Where the command is installed."""
    found = shutil.which("runstore", path=sysconfig.get_path("scripts"))
    assert found is not None, "runstore is not installed beside this Python"
    return found


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a plain shell."""
    kept = {key: value for key, value in os.environ.items() if key not in TERMINAL_SETTINGS}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **(extra or {})}


def runstore(*args: object, folder: Path, env: Mapping[str, str] | None = None) -> CommandOutput:
    """Run the command to its end, its output piped."""
    return subprocess.run(
        [command(), *map(str, args)],
        cwd=folder,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


@contextlib.contextmanager
def start_runstore(*args: object, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command at work, its output piped; it is killed if it is still there at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, command(), *map(str, args)],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.output = b""
        self._screen = screen

    def read_until(self, text: str) -> None:
        """Read what the command prints until the text has come."""
        while text.encode() not in self.output:
            assert self._read(), self.output.decode(errors="replace")

    def read_to_end(self) -> str:
        """Read until the command has ended, and give all that it printed."""
        while self._read():
            pass
        self.process.wait(timeout=20)
        return self.output.decode()

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def _read(self) -> bytes:
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the other end is closed
            return b""
        self.output += data
        return data


@contextlib.contextmanager
def in_terminal(
    *args: object, folder: Path, columns: int = 80, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """The command at work in a pseudo-terminal of some width."""
    screen, other_end = os.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, command(), *map(str, args)],
        cwd=folder,
        env=environment(env),
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    ) as process:
        os.close(other_end)
        try:
            yield Terminal(process, screen)
        finally:
            process.kill()
            os.close(screen)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file, read by the standard library alone."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def tree_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder below, with what any change would change."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }
