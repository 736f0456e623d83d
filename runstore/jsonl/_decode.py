"""Bytes to records: a JSONL file as crashed, concurrent and foreign writers leave it.

A file is split on byte 0x0A and nothing else. A line is read as a run of JSON objects from its
start: each complete object is a record, and what follows the last one is reported as malformed. So
the records do not depend on the pieces in which the bytes arrived. Blank lines are neither.

orjson reads what it can; what it refuses gets a slower second look, which also takes the bare
tokens `NaN`, `Infinity` and `-Infinity` that Python's `json` writes, numbers beyond a double's
range (as infinities), lone surrogate escapes, and invalid UTF-8 (decoded with replacement). Integers
beyond 64 bits come back as floats either way.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from runstore.errors import MalformedFileError

__all__ = ["Parsed", "Problem", "Record", "decode_document", "parse_lines", "parse_tail", "split_objects"]

Record = dict[str, Any]

# White space, byte order marks of files joined together, and the NUL bytes that a crashed disk leaves.
_FILLER = re.compile(rb"(?:[ \t\r\x00]|\xef\xbb\xbf)*+")
# Strings as a whole (so that braces inside them do not count), then the braces.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}]', re.DOTALL)
# They look behind after their first character, which the search can then jump to.
_BARE_NAN = re.compile(rb"N(?<=[:,\[ \t\r]N)aN(?=[ \t\r]*[,}\]])")
_BARE_INFINITY = re.compile(rb"(?:I(?<=[:,\[ \t\r]I)|-(?<=[:,\[ \t\r]-)I)nfinity(?=[ \t\r]*[,}\]])")
_LONG_NUMBER = re.compile(rb"[0-9]{19}")

# A random string of this process, which no line can hold by accident.
_NONCE = secrets.token_hex(10)
_JOINT, _ARRAYLESS_JOINT = f',"{_NONCE}",'.encode(), b"\n,0,"
_STAND_INS = {token: f'"{_NONCE}{token.decode()}"'.encode() for token in (b"NaN", b"Infinity", b"-Infinity")}
_STOOD_FOR = {
    f"{_NONCE}NaN": math.nan,
    f"{_NONCE}Infinity": math.inf,
    f"{_NONCE}-Infinity": -math.inf,
}
# What looking at a line by itself takes beyond its bytes, and how many times as much an odd one takes.
LINE_WORK = 50
ODD_LINE_WORK = 20
_LONGEST_INT = len(str(2**64))


class Problem(NamedTuple):
    """Bytes that are no record."""

    line: int
    """Lines before it in the parsed data."""
    offset: int
    """Bytes before it in the parsed data."""
    reason: str


@dataclass(slots=True)
class Parsed:
    """What some bytes hold."""

    records: list[Record]
    problems: list[Problem]
    lines: int = 0
    """Newlines that the bytes hold."""
    replaced: int = 0
    """Records whose invalid UTF-8 was decoded with replacement characters."""
    rest: bytes = b""
    """Lines that are still to be parsed, because those before them took so much work."""


class _Object(NamedTuple):
    record: Record
    start: int
    end: int
    replaced: bool


def parse_lines(data: bytes, most_work: float = math.inf, *, one_by_one: bool = False) -> Parsed:
    """The records of whole lines.

    Args:
        data: Any bytes that end with a newline.
        most_work: Where to leave off when lines have to be looked at one by one, in bytes of good lines:
            an event loop waits meanwhile, and malformed lines take a hundred times as long.
        one_by_one: Do not try to parse them together: they are the rest of some where that failed.
    """
    if not one_by_one and data.startswith(b"{"):
        records = _parse_block(data)
        if records is None:
            records = _parse_block_with_bare_numbers(data)
        if records is not None:
            return Parsed(records, [], len(records))
    return _parse_each_line(data, most_work)


def _parse_block(data: bytes) -> list[Record] | None:
    """The records when every line is exactly one object that orjson reads; else `None`.

    The lines become one array, each with a string after it that no line holds. If every second item
    is that string, once a newline, each newline stood between two items, and never inside one. Lines
    without arrays do with a number after a newline: inside a string or an object neither is JSON.
    """
    try:
        if data.find(b"\n") == len(data) - 1:  # one line, which may be too long to be copied
            record = orjson.loads(data)
            return [record] if type(record) is dict else None
        joint, mark = (_JOINT, _NONCE) if b"[" in data else (_ARRAYLESS_JOINT, 0)
        joined = data.replace(b"\n", joint)
        items = orjson.loads(b"[%b0]" % joined)
    except orjson.JSONDecodeError:
        return None
    newlines = (len(joined) - len(data)) // (len(joint) - 1)  # counting them would cost a tenth of it all
    records: list[Record] = items[:-1:2]
    joints = items[1::2]
    objects = list(map(type, records)).count(dict)
    all_apart = len(records) == len(joints) == joints.count(mark) == newlines == objects
    return records if all_apart else None


def _parse_block_with_bare_numbers(data: bytes) -> list[Record] | None:
    quoted = _quote_bare_numbers(data)
    records = None if quoted is None else _parse_block(quoted)
    if records is not None:
        _restore(records)
    return records


def _quote_bare_numbers(data: bytes) -> bytes | None:
    """The data with quoted stand-ins for NaN and the infinities, which orjson does not read.

    A stand-in inside a string would end that string early, which no JSON survives, and what a colon
    follows, so that it might become a key, is no bare number.

    Returns:
        The quoted data, or `None` where there is nothing to quote.
    """
    data, count = _BARE_NAN.subn(_STAND_INS[b"NaN"], data)
    if b"Infinity" in data:
        data, infinities = _BARE_INFINITY.subn(lambda match: _STAND_INS[match[0]], data)
        count += infinities
    return data if count else None


def _restore(records: list[Record]) -> None:
    """Put the numbers back where their stand-ins are."""
    containers: list[Any] = list(records)
    for container in containers:  # which grows on the way
        for key, value in container.items() if type(container) is dict else enumerate(container):
            kind = type(value)
            if kind is float:
                continue
            if kind is str:
                if value in _STOOD_FOR:
                    container[key] = _STOOD_FOR[value]
            elif kind is dict or kind is list:
                containers.append(value)


def _parse_each_line(data: bytes, most_work: float = math.inf) -> Parsed:
    parsed = Parsed([], [], data.count(b"\n"))
    start, work = 0, 0
    most_lines = -1 if most_work == math.inf else int(most_work) // LINE_WORK + 1  # -1: all of them
    for index, line in enumerate(data[:-1].split(b"\n", most_lines)):
        if work > most_work or index == most_lines:
            parsed.lines, parsed.rest = index, data[start:]
            break
        work += len(line) + LINE_WORK
        if line:
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                record = None
            if type(record) is dict:
                parsed.records.append(record)
            else:
                _parse_odd_line(parsed, line, index, start)
                work += (len(line) + LINE_WORK) * ODD_LINE_WORK
        start += len(line) + 1
    return parsed


def _parse_odd_line(parsed: Parsed, line: bytes, index: int, start: int) -> None:
    objects, rest, reason = split_objects(line)
    parsed.records += [found.record for found in objects]
    parsed.replaced += sum(found.replaced for found in objects)
    if rest < len(line):
        parsed.problems.append(Problem(index, start + rest, reason))


def parse_tail(tail: bytes) -> tuple[Parsed, int]:
    """The complete objects at the start of a line that has no newline yet.

    Returns:
        The records, and how many bytes of the tail they and the filler around them take up.
    """
    objects, rest, _ = split_objects(tail)
    consumed = rest if objects else 0
    replaced = sum(found.replaced for found in objects)
    return Parsed([found.record for found in objects], [], replaced=replaced), consumed


def split_objects(line: bytes) -> tuple[list[_Object], int, str]:
    """The run of JSON objects at the start of a line.

    Returns:
        The objects with their places, the place where something else begins (the line's length if
        nothing does), and why that is no object.
    """
    position = _skip_filler(line, 0)
    whole = _decode_object(line[position:].rstrip(b" \t\r\0"))
    if whole is not None:
        return [_Object(whole[0], position, len(line), whole[1])], len(line), ""
    objects: list[_Object] = []
    while position < len(line):
        if line[position] != ord("{"):
            return objects, position, "not a JSON object"
        end = _end_of_object(line, position)
        if end is None:
            return objects, position, "a JSON object that does not end"
        decoded = _decode_object(line[position:end])
        if decoded is None:
            return objects, position, "not valid JSON"
        following = _skip_filler(line, end)
        objects.append(_Object(decoded[0], position, following, decoded[1]))
        position = following
    return objects, position, ""


def _skip_filler(line: bytes, position: int) -> int:
    match = _FILLER.match(line, position)
    return position if match is None else match.end()


def _end_of_object(line: bytes, start: int) -> int | None:
    """Where the braces that open at `start` are balanced."""
    depth = 0
    for match in _STRUCTURE.finditer(line, start):
        brace = match[0]
        if brace == b"{":
            depth += 1
        elif brace == b"}":
            depth -= 1
            if depth == 0:
                return match.end()
    return None


def _decode_object(raw: bytes) -> tuple[Record, bool] | None:
    """One object by orjson, else by the second look, and whether its text had to be repaired."""
    if not (raw.startswith(b"{") and raw.endswith(b"}")):
        return None
    try:
        return orjson.loads(raw), False
    except orjson.JSONDecodeError:
        pass
    record = _decode_with_bare_numbers(raw)
    if record is not None:
        return record, False
    try:
        text, replaced = raw.decode(), False
    except UnicodeDecodeError:
        text, replaced = raw.decode(errors="replace"), True
    try:
        return _SECOND_LOOK.decode(text), replaced
    except (ValueError, RecursionError):
        return None


def _decode_with_bare_numbers(raw: bytes) -> Record | None:
    quoted = _quote_bare_numbers(raw)
    try:
        record: Record | None = None if quoted is None else orjson.loads(quoted)
    except orjson.JSONDecodeError:
        return None
    if record is not None:
        _restore([record])
    return record


def _parse_int(digits: str) -> int | float:
    """As orjson: an integer within 64 bits (signed or not), else a float."""
    if len(digits) > _LONGEST_INT:
        return float(digits)
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else float(digits)


_SECOND_LOOK = json.JSONDecoder(parse_int=_parse_int)


def decode_document(data: bytes, url: str) -> Record:
    """The object that a whole file holds, with its integers exact.

    Args:
        data: The file's bytes.
        url: Where it is, for the error.

    Raises:
        MalformedFileError: It is empty, not JSON, not UTF-8, or not an object.
    """
    text = data.removeprefix(b"\xef\xbb\xbf")
    try:
        document = _decode_exactly(text)
    except UnicodeDecodeError as error:
        msg = f"{url} is not UTF-8 text ({_guess_encoding(data)}byte {error.start}): convert it to UTF-8"
        raise MalformedFileError(msg) from error
    except RecursionError as error:
        msg = f"{url} is nested too deeply to be read"
        raise MalformedFileError(msg) from error
    except ValueError as error:
        state = "is empty" if not data.strip() else f"is not valid JSON ({error})"
        msg = f"{url} {state}: restore it from a copy, or write it anew"
        raise MalformedFileError(msg) from error
    if not isinstance(document, dict):
        msg = f"{url} holds a JSON {type(document).__name__}, and an object is expected"
        raise MalformedFileError(msg)
    return document


def _decode_exactly(text: bytes) -> Any:
    """By orjson, unless integers beyond 64 bits may be in it, which that rounds."""
    if not _LONG_NUMBER.search(text):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    return json.loads(text.decode())


def _guess_encoding(data: bytes) -> str:
    marks = {b"\xff\xfe": "it looks like UTF-16; ", b"\xfe\xff": "it looks like UTF-16; "}
    return marks.get(data[:2], "")
