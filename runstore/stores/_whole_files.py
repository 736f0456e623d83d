"""JSONL files that are read as a whole: checkpoints and rollouts."""

from __future__ import annotations

import logging

from runstore.jsonl._decode import Record, parse_lines, parse_tail
from runstore.jsonl._scan import MOST_WORK, pieces
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
    line, offset = 1, 0
    for piece in pieces(data):
        rest = piece
        while rest:
            if rest.endswith(b"\n"):
                parsed = parse_lines(rest, MOST_WORK, one_by_one=rest is not piece)
            else:
                parsed = parse_tail(rest)[0]
            records += parsed.records
            for lines, size, reason in parsed.problems:
                problems.append(f"line {line + lines} at byte {offset + size}: {reason}")
            line, offset = line + parsed.lines, offset + len(rest) - len(parsed.rest)
            rest = parsed.rest
            await breathe()
    if problems:
        logger.warning("%s: skipped %d malformed line(s), the first is %s", url, len(problems), problems[0])
    return records
