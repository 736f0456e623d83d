"""JSONL files that are read as a whole: checkpoints and rollouts."""

from __future__ import annotations

import logging

from runstore.jsonl._decode import Record
from runstore.jsonl._position import START
from runstore.jsonl._scan import pieces, take
from runstore.storage._bridge import breathe

__all__ = ["parse_file"]

logger = logging.getLogger("runstore")


async def parse_file(data: bytes, url: str) -> list[Record]:
    """The records of a whole file; what is none is skipped, with one warning.

    Args:
        data: The file's bytes.
        url: Where it is, for the warning.
    """
    records: list[Record] = []
    problems: list[str] = []
    position = START
    for piece in pieces(data):
        before, (parsed, position) = position, take(position, piece, at_end=True)
        records += parsed.records
        for line, offset, reason in parsed.problems:
            problems.append(f"line {(before.line or 1) + line} at byte {before.offset + offset}: {reason}")
        await breathe()
    if problems:
        logger.warning("%s: skipped %d malformed line(s), the first is %s", url, len(problems), problems[0])
    return records
