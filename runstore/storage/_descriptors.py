"""Opening a file so that a Ctrl-C leaks no descriptor."""

from __future__ import annotations

import os

__all__ = ["open_into"]


def open_into(held: list[int], path: str, flags: int, mode: int = 0o666) -> None:
    """Open a file and add its descriptor to `held`, which the caller closes in a `finally` of its own.

    An interrupt is raised after a call made from Python code: after `os.open`, before what it returned is
    assigned. Here both are one step, done in C; and in a `finally`, no call may come before `os.close`.
    Reads of a file and appends do without this: it would cost a twentieth of their time.
    """
    held.extend(map(os.open, (path,), (flags,), (mode,)))
