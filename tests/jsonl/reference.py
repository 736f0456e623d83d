"""The reading rules once more: slow, obvious, with nothing but the standard library."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

BOM = b"\xef\xbb\xbf"
FILLER = (b" ", b"\t", b"\r", b"\0", BOM)


@dataclass
class Reading:
    """What the rules make of some bytes; a problem is (lines before it, bytes before it)."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[tuple[int, int]] = field(default_factory=list)
    replaced: int = 0


def read(data: bytes) -> Reading:
    """The records of a file, and what in it is no record; a last line without a newline is pending."""
    reading = Reading()
    *lines, tail = data.split(b"\n")
    offset = 0
    for number, line in enumerate(lines):
        rest = read_line(reading, line)
        if rest < len(line):
            reading.problems.append((number, offset + rest))
        offset += len(line) + 1
    read_line(reading, tail)
    return reading


def read_line(reading: Reading, line: bytes) -> int:
    """Take the objects at the start of a line; where something else begins."""
    place = skip_filler(line, 0)
    while place < len(line):
        end = end_of_object(line, place)
        if end is None:
            return place
        record, replaced = decode(line[place:end])
        reading.records.append(record)
        reading.replaced += replaced
        place = skip_filler(line, end)
    return place


def skip_filler(line: bytes, place: int) -> int:
    while filler := next((mark for mark in FILLER if line.startswith(mark, place)), None):
        place += len(filler)
    return place


def end_of_object(line: bytes, place: int) -> int | None:
    """Where the object ends that begins there, if one does. In Latin-1 a byte is a character."""
    if line[place : place + 1] != b"{":
        return None
    try:
        _, end = DECODER.raw_decode(line.decode("latin-1"), place)
    except (ValueError, RecursionError):
        return None
    return end


def decode(raw: bytes) -> tuple[dict[str, Any], bool]:
    """The object, and whether its text was no UTF-8."""
    text = raw.decode(errors="replace")
    record: dict[str, Any] = DECODER.decode(text)
    return record, text.encode(errors="surrogatepass") != raw


def read_int(digits: str) -> int | float:
    """Integers of 64 bits, signed or not; others as floats."""
    if len(digits) > 30:
        return float(digits)
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else float(value)


DECODER = json.JSONDecoder(parse_int=read_int)


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and order of keys, with NaN equal to itself; not recursive."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, dict):
            if list(left) != list(right):
                return False
            pairs += zip(left.values(), right.values(), strict=True)
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif isinstance(left, float) and math.isnan(left):
            if not math.isnan(right):
                return False
        elif left != right:
            return False
    return True
