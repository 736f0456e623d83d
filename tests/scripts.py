"""Python programs that tests start: each in a process of its own, run by path."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["NOBODY", "run", "start", "write_script"]

# Code for a script started as root: what it may still do is what anybody may.
NOBODY = """
import os
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


def write_script(folder: Path, source: str, name: str = "script.py") -> Path:
    """A program as a file."""
    script = folder / name
    script.write_text(textwrap.dedent(source))
    return script


def start(
    script: Path, *args: object, options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a program, with pipes."""
    return subprocess.Popen(
        [sys.executable, *options, str(script), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


def run(
    script: Path,
    *args: object,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    seconds: float = 50,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    with start(script, *args, options=options, env=env) as process:
        try:
            out, error = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)
