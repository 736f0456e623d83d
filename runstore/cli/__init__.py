"""The command line: `runstore`, or `python -m runstore`.

It needs the packages of the extra `cli`, which `import runstore` never loads.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from runstore.cli._text import one_line
from runstore.errors import MissingDependencyError, RunStoreError

__all__ = ["main"]

EXTRA = {"plotille", "rich", "typer"}


def main() -> None:
    """Run the command that the arguments name; errors are one line, and exit with 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        load_app()()
    except BrokenPipeError:
        # Whoever read the output has gone. What is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (RunStoreError, OSError) as error:
        sys.stderr.write(f"runstore: {one_line(error)}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def load_app() -> Callable[[], None]:
    """The commands.

    Raises:
        MissingDependencyError: A package of the extra is not installed.
    """
    try:
        from runstore.cli._app import app  # noqa: PLC0415  so that its absence can be explained
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        msg = f"the command line needs {package}, which is not installed: pip install 'runstore[cli]'"
        raise MissingDependencyError(msg) from error
    return app
