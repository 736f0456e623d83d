"""The command line: `runstore`, or `python -m runstore`.

It needs the packages of the extra `cli`, which `import runstore` never loads.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from runstore.cli._text import one_line
from runstore.errors import MissingDependencyError, RunStoreError, RunStoreWarning

__all__ = ["main"]

EXTRA = {"plotille", "rich", "typer"}


def main() -> None:
    """Run the command that the arguments name; errors are one line, and exit with 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    show_warnings_on_one_line()
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


def show_warnings_on_one_line() -> None:
    """Print this package's warnings as its errors are printed: without a place in its code."""
    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, RunStoreWarning):
            sys.stderr.write(f"runstore: warning: {one_line(message)}\n")
        else:
            show_others(message, category, *where, **more)

    warnings.showwarning = show
