"""Dropping the metrics of steps that a resumed run will do again."""

from __future__ import annotations

import operator
from typing import Any

from runstore.errors import InvalidInputError, NotFoundError
from runstore.jsonl._decode import parse_lines, split_objects
from runstore.jsonl._scan import pieces
from runstore.storage import Storage
from runstore.storage._bridge import breathe

__all__ = ["truncate_metrics"]


async def truncate_metrics(storage: Storage, path: str, from_step: int) -> int:
    """Drop rows with an integer `step >= from_step`, after copying the file.

    Returns:
        How many rows were dropped.

    Raises:
        InvalidInputError: The step is negative.
        TypeError: It is no integer.
    """
    is_step = hasattr(from_step, "__index__") and not isinstance(from_step, bool)
    if not is_step or operator.index(from_step) < 0:
        msg = f"{path} cannot be truncated from step {from_step!r} on: give an integer from 0"
        raise InvalidInputError(msg) if is_step else TypeError(msg)
    from_step = operator.index(from_step)
    try:
        data = await storage.aread(path)
    except NotFoundError:
        return 0
    kept: list[bytes] = []
    dropped = 0
    for piece in pieces(data):
        rest, count = _without_steps(piece, from_step)
        kept.append(rest)
        dropped += count
        await breathe()
    if dropped:
        await storage.awrite(await _free_name(storage, f"{path}.pre_resume_{from_step:06d}"), data)
        await storage.awrite(path, b"".join(kept))
    return dropped


async def _free_name(storage: Storage, name: str) -> str:
    free, number = name, 0
    while await storage.aexists(free):
        number += 1
        free = f"{name}.{number}"
    return free


def _without_steps(piece: bytes, from_step: int) -> tuple[bytes, int]:
    """The piece without the rows to drop, and how many they were."""
    if piece.endswith(b"\n"):
        parsed = parse_lines(piece)
        if not any(_is_dropped(record, from_step) for record in parsed.records):
            return piece, 0
    kept: list[bytes] = []
    dropped = 0
    for line in _lines(piece):
        rest, count = _line_without_steps(line, from_step)
        kept.append(rest)
        dropped += count
    return b"".join(kept), dropped


def _lines(piece: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in piece.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines


def _line_without_steps(line: bytes, from_step: int) -> tuple[bytes, int]:
    body = line.removesuffix(b"\n")
    objects, rest, _ = split_objects(body)
    dropped = [found for found in objects if _is_dropped(found.record, from_step)]
    if not dropped:
        return line, 0
    kept = [body[found.start : found.end] for found in objects if not _is_dropped(found.record, from_step)]
    left = b"".join(kept) + body[rest:]
    return (left + line[len(body) :] if left else b""), len(dropped)


def _is_dropped(record: dict[str, Any], from_step: int) -> bool:
    step = record.get("step")
    return type(step) is int and step >= from_step
