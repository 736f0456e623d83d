"""Readable values for what a configuration holds: paths, enums, dataclasses, models, functions."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import enum
import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

__all__ = ["to_readable"]


def to_readable(value: Any) -> Any:
    """One step towards JSON for any value that is no plain dict, list, string, number or None.

    The results may hold such values again. Nothing is refused, and no object's own code can stop a
    run: what is left, or fails to tell about itself, becomes its `repr`.
    """
    try:
        return _step(value)
    except Exception:  # noqa: BLE001  whatever a property, a __getattr__ or a __repr__ of the object raised
        return object.__repr__(value)


def _step(value: Any) -> Any:
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        module = getattr(value, "__module__", None)  # a method of a builtin type has none
        return f"{module}.{value.__qualname__}" if module else value.__qualname__
    return _object_to_readable(value)


def _object_to_readable(value: Any) -> Any:
    """What the fields of an object say; its `repr` when it has none to show."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    for name in ("model_dump", "to_dict", "tolist"):
        method = getattr(value, name, None)
        if callable(method):
            with contextlib.suppress(Exception):
                result = method()
                if type(result) is not type(value):
                    return result
    fields = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return fields or str(value)


def _set_to_list(value: AbstractSet[Any]) -> list[Any]:
    return sorted(value, key=lambda item: (type(item).__name__, repr(item)))


def _bytes_to_text(value: bytes | bytearray) -> str:
    return bytes(value).decode(errors="backslashreplace")


_CONVERSIONS: list[tuple[type | tuple[type, ...], Callable[[Any], Any]]] = [
    (enum.Enum, lambda value: value.value),
    (float, float),
    (int, int),
    (str, str),
    (os.PathLike, lambda value: os.fsdecode(os.fspath(value))),
    ((dt.datetime, dt.date, dt.time), lambda value: value.isoformat()),
    (dt.timedelta, lambda value: value.total_seconds()),
    (argparse.Namespace, vars),
    (Mapping, dict),
    (AbstractSet, _set_to_list),
    ((bytes, bytearray), _bytes_to_text),
    ((list, tuple), list),
]
