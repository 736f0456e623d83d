"""Docstrings of sync twins: written once, at the async method, and shown at both."""

from __future__ import annotations

import inspect
from typing import TypeVar

__all__ = ["show_twins"]

T = TypeVar("T", bound=type)


def show_twins(owner: T) -> T:
    """Add the docstring of each async method of a class to that of its twin, for `help()` and notebooks."""
    for name, twin in vars(owner).items():
        docstring = getattr(getattr(owner, f"a{name}", None), "__doc__", None)
        if docstring and (getattr(twin, "__doc__", None) or "").startswith("Sync twin of"):
            twin.__doc__ = f"{twin.__doc__}\n\n{inspect.cleandoc(docstring)}"
    return owner
