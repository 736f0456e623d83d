"""Values of a run as text for a terminal: short, and nothing in them can steer the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runstore import UnstorableValueError, strict_json

__all__ = ["flatten", "has_any", "lookup", "one_line", "printable", "record_line", "short"]

LONGEST_VALUE = 60


# Objects further in than this are shown as they are.
DEEPEST = 20


def flatten(record: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Keys and values of a record, with objects inside it taken apart: `{"a": {"b": 1}}` has `a/b`."""
    for key, value in record.items():
        if isinstance(value, dict) and value and depth < DEEPEST:
            yield from flatten(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value


def has_any(record: Mapping[str, Any], keys: Sequence[str]) -> bool:
    """Whether a record has one of the keys, as `flatten` names them."""
    names = {name for name, _ in flatten(record)}
    return any(key in names for key in keys)


def lookup(record: Mapping[str, Any], key: str) -> Any:
    """The value of a key as `flatten` names it, `None` where it is not there."""
    if key in record:
        return record[key]
    for outer, value in record.items():
        if isinstance(value, dict) and key.startswith(f"{outer}/"):
            found = lookup(value, key[len(outer) + 1 :])
            if found is not None:
                return found
    return None


def printable(text: str) -> str:
    """The text with everything that is no visible character written as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def one_line(text: object) -> str:
    """The text on one line, white space of any length as one space."""
    return printable(" ".join(str(text).split()))


def short(value: Any, longest: int = LONGEST_VALUE) -> str:
    """A value in few characters: numbers with four digits, all else cut to a length."""
    if isinstance(value, float):
        return f"{value:.4g}"
    try:
        text = value if isinstance(value, str) else strict_json(value)
    except UnstorableValueError:  # nested too deeply
        text = "…"
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return printable(text)


def record_line(record: Mapping[str, Any], keys: Sequence[str] = (), longest: int = LONGEST_VALUE) -> str:
    """A record on one line, its step first; only the keys asked for, if any are."""
    values = dict(flatten(record))
    parts = [f"step {short(values.pop('step'))}"] if "step" in values else []
    shown = [key for key in keys if key in values] if keys else values
    return "  ".join([*parts, *(f"{printable(key)} {short(values[key], longest)}" for key in shown)])
