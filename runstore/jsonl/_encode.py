"""Values to bytes: one record a line, or one document a file.

orjson writes what it can. It writes NaN and the infinities as `null` without telling, so a record
whose output holds `null` is looked at again, and gets the bare tokens that Python's `json` reads.
What orjson refuses (integers beyond 64 bits, keys that are no strings, lone surrogates, nesting
beyond 254) is written by the standard library's `json`.

Everything is encoded before a file is touched, so a value that has no JSON form costs nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import numbers
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from runstore.errors import UnstorableValueError
from runstore.jsonl._readable import to_readable

__all__ = ["encode_document", "encode_object", "encode_record", "strict_json"]

_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_LINE = _OPTIONS | orjson.OPT_APPEND_NEWLINE
_INDENTED = _OPTIONS | orjson.OPT_INDENT_2

Convert = Callable[[Any], Any]

# Line separators that are legal inside JSON text and cut a record in two for `str.splitlines`.
_SEPARATORS = {"\u2028": b"\\u2028", "\u2029": b"\\u2029", "\u0085": b"\\u0085"}
_ESCAPES = [(mark.encode(), escape) for mark, escape in _SEPARATORS.items()]


def encode_record(record: Mapping[str, Any]) -> bytes:
    """A record as one line, with its newline.

    Numbers of numpy, torch and the like become numbers, arrays become lists, `Decimal` a number,
    dataclasses objects, dates ISO 8601 strings.

    Raises:
        UnstorableValueError: It is no mapping, or a value has no JSON form; the message names its
            key path.
    """
    if type(record) is not dict:
        record = _as_dict(record)
    try:
        line = orjson.dumps(record, default=to_plain, option=_LINE)
    except TypeError:
        return _encode_slowly(record, to_plain, indent=None) + b"\n"
    if b"null" in line and _may_hold_bare_number(record):
        return _encode_slowly(record, to_plain, indent=None) + b"\n"
    return line if line.isascii() else _escape_separators(line)


def _as_dict(record: object) -> dict[str, Any]:
    if isinstance(record, Mapping):
        return dict(record)
    msg = f"a record must be a mapping of names to values, not {type(record).__qualname__}"
    raise UnstorableValueError(msg)


def encode_document(document: Any) -> bytes:
    """A document, indented by 2; what has no JSON form of its own becomes a readable value.

    Raises:
        UnstorableValueError: A value holds itself; the message names its key path.
    """
    try:
        data = orjson.dumps(document, default=to_readable, option=_INDENTED)
    except TypeError:
        return _encode_slowly(document, to_readable, indent=2)
    if b"null" in data and _may_hold_bare_number(document):
        return _encode_slowly(document, to_readable, indent=2)
    return data


def encode_object(what: str, document: Any) -> bytes:
    """As `encode_document`, of a document that has to be an object.

    Args:
        what: What it is, for the error.
        document: What is to make the object.

    Raises:
        UnstorableValueError: It makes none, or a value holds itself.
    """
    data = encode_document(document)
    if not data.startswith(b"{"):
        msg = f"{what} must make a JSON object, and a {type(document).__qualname__} does not"
        raise UnstorableValueError(msg)
    return data


def strict_json(value: Any) -> str:
    """JSON for browsers and other strict readers: server-sent events, exports.

    NaN and the infinities, for which strict JSON has no number, become the strings `"NaN"`,
    `"Infinity"` and `"-Infinity"`, which JavaScript's `Number()` reads back.

    Args:
        value: A record, a list of records, or any value that a record may hold.

    Returns:
        One line of JSON, without a newline.

    Raises:
        UnstorableValueError: A value has no JSON form; the message names its key path.
    """
    try:
        data = orjson.dumps(value, default=to_plain, option=_OPTIONS)
    except TypeError:
        data = b"null"
    if b"null" not in data:
        return data.decode()
    plain = _plain_tree(value, to_plain, "", ())
    return json.dumps(_name_bare_numbers(plain), allow_nan=False, separators=(",", ":"))


def to_plain(value: Any) -> Any:
    """One step towards JSON for a value that is no plain dict, list, string, number or None.

    Raises:
        TypeError: There is no such step.
    """
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return _array_to_plain(value)


_CONVERSIONS: list[tuple[type | tuple[type, ...], Convert]] = [
    (enum.Enum, lambda value: value.value),
    ((float, decimal.Decimal), float),
    (int, int),
    (str, str.__str__),
    ((dt.datetime, dt.date, dt.time), lambda value: value.isoformat()),
    (uuid.UUID, str),
    (Mapping, dict),
    ((list, tuple), list),
]


def _array_to_plain(value: Any) -> Any:
    """The numbers of a numpy, torch, jax … array or scalar."""
    for name in ("tolist", "item"):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            plain = method()
            if type(plain) is not type(value):
                return plain
    if isinstance(value, numbers.Real):  # numpy's long double, fractions
        return float(value)
    msg = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(msg)


def _escape_separators(line: bytes) -> bytes:
    for mark, escape in _ESCAPES:
        if mark in line:
            line = line.replace(mark, escape)
    return line


def _may_hold_bare_number(value: Any) -> bool:
    try:
        return _holds_bare_number(value)
    except RecursionError:  # called from deep in the user's own stack
        return True


def _holds_bare_number(value: Any) -> bool:
    """Whether NaN or an infinity is in there, or something that may turn into one."""
    kind = type(value)
    if kind is float:
        return not math.isfinite(value)
    if kind is str or kind is int or kind is bool or value is None:
        return False
    if kind is dict:
        return any(map(_holds_bare_number, value.values()))
    if kind is list or kind is tuple:
        return any(map(_holds_bare_number, value))
    return True


def _encode_slowly(value: Any, convert: Convert, indent: int | None) -> bytes:
    plain = _plain_tree(value, convert, "", ())
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(plain, indent=indent, separators=separators).encode()
    except RecursionError as error:
        msg = "the value is nested too deeply to be stored"
        raise UnstorableValueError(msg) from error
    except ValueError as error:  # an integer of more than 4,300 digits
        raise UnstorableValueError(str(error)) from error


def _plain_tree(value: Any, convert: Convert, path: str, above: tuple[int, ...]) -> Any:
    """The value as plain dicts, lists, strings, numbers and None."""
    kind = type(value)
    if kind is str or kind is float or kind is bool or value is None:
        return value
    if kind is int:
        return value
    if id(value) in above:
        msg = f"{path or 'the value'} holds itself: a cycle has no JSON form"
        raise UnstorableValueError(msg)
    above = (*above, id(value))
    try:
        if kind is dict:
            return {
                _plain_key(key, convert, path): _plain_tree(item, convert, f"{path}[{key!r}]", above)
                for key, item in value.items()
            }
        if kind is list or kind is tuple:
            return [_plain_tree(item, convert, f"{path}[{index}]", above) for index, item in enumerate(value)]
        return _plain_tree(_convert(value, convert, path), convert, path, above)
    except RecursionError:
        msg = f"{path[:80] or 'the value'} is nested too deeply to be stored"
        raise UnstorableValueError(msg) from None


def _convert(value: Any, convert: Convert, path: str) -> Any:
    try:
        return convert(value)
    except Exception as error:  # a foreign type's own method may raise anything
        msg = (
            f"{path or 'the value'} is of type {type(value).__qualname__}, which has no JSON form: "
            "convert it to a number, string, list or dict first"
        )
        raise UnstorableValueError(msg) from error


def _plain_key(key: Any, convert: Convert, path: str) -> str:
    if type(key) is str:
        return key
    if isinstance(key, enum.Enum):
        return _plain_key(key.value, convert, path)
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(int(key) if isinstance(key, int) and not isinstance(key, bool) else key)
    if convert is to_readable:
        return str(convert(key))
    place = f"the key {key!r} of {path or 'the record'}"
    plain = _convert(key, convert, place)
    if isinstance(plain, list | dict):
        msg = f"{place} is of type {type(key).__qualname__}, which cannot name a value in JSON: use a string"
        raise UnstorableValueError(msg)
    return _plain_key(plain, convert, path)


def _name_bare_numbers(value: Any) -> Any:
    if type(value) is float and not math.isfinite(value):
        return json.dumps(value)
    if type(value) is dict:
        return {key: _name_bare_numbers(item) for key, item in value.items()}
    if type(value) is list:
        return [_name_bare_numbers(item) for item in value]
    return value
