"""A curve in a terminal, with axes whose labels are round numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotille

__all__ = ["draw"]

Point = tuple[float, float]

# Larger numbers, as a run that diverges may log them, would overflow the sums below.
LARGEST = 1e300

# Columns between two labels of the x axis at least, and rows of the y axis.
COLUMNS_A_LABEL = 10
ROWS_A_LABEL = 2

NARROWEST = 20
BLANK = "\u2800"  # the braille character without a dot


@dataclass(frozen=True)
class Axis:
    """Round numbers at equal distances, and how many cells lie between two of them."""

    low: float
    step: float
    intervals: int
    cells_a_step: int

    @classmethod
    def over(cls, values: Sequence[float], cells: int, cells_a_label: int) -> Axis:
        """The axis that covers the values and fills about as many cells; whole numbers get whole labels."""
        low, high = min(values), max(values)
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, but for rounding
            margin = abs(low) * 0.1 or 1.0
            low, high = low - margin, high + margin
        step = _round_step((high - low) / max(cells // cells_a_label, 1))
        if all(value == int(value) for value in values):
            step = max(step, 1.0)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        intervals = max(last - first, 1)
        return cls(first * step, step, intervals, max(cells // intervals, 1))

    @property
    def cells(self) -> int:
        return self.intervals * self.cells_a_step + 1

    @property
    def limits(self) -> tuple[float, float]:
        """The edges of the first and the last cell: a label's number is in the middle of its cell."""
        half = self.step / self.cells_a_step / 2
        return self.low - half, self.low + self.intervals * self.step + half

    def labels(self) -> dict[int, str]:
        """The label of each cell that has one."""
        numbers = [self.low + index * self.step for index in range(self.intervals + 1)]
        largest = max(map(abs, numbers))
        if self.step >= 1e-4 and largest < 1e9:  # noqa: PLR2004
            decimals = max(0, -math.floor(math.log10(self.step) + 1e-9))
            texts = [f"{value:.{decimals}f}" for value in numbers]
        else:
            digits = min(max(math.ceil(math.log10(largest / self.step)) + 1, 1), 15)
            texts = [f"{value:.{digits}g}" for value in numbers]
        return {index * self.cells_a_step: _without_minus_zero(text) for index, text in enumerate(texts)}


def draw(points: Sequence[Point], width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """The lines of a plot: a curve, and its two axes.

    Args:
        points: At least one; x ascending, and finite numbers below `LARGEST` only.
        width: Columns that it may take up; at least `NARROWEST` are taken all the same.
        height: Rows for the curve, about.
        ascii_only: Do without braille and box-drawing characters.
    """
    y_axis = Axis.over([y for _, y in points], height, ROWS_A_LABEL)
    y_labels = y_axis.labels()
    margin = max(map(len, y_labels.values()))
    width = max(width, NARROWEST)
    x_axis = _x_axis([x for x, _ in points], max(width - margin - 2 - COLUMNS_A_LABEL // 2, 2))
    rows = []
    for row, dots in enumerate(_curve(points, x_axis, y_axis)):
        label = y_labels.get(y_axis.cells - 1 - row, "")
        rows.append(f"{label:>{margin}} {'┤' if label else '│'}{dots}".rstrip())
    rows += _x_axis_lines(x_axis, margin, width)
    return [_to_ascii(row) for row in rows] if ascii_only else rows


def _x_axis(values: Sequence[float], cells: int) -> Axis:
    axis = Axis.over(values, cells, COLUMNS_A_LABEL)
    longest = max(map(len, axis.labels().values()))
    if longest < axis.cells_a_step:
        return axis
    return Axis.over(values, cells, longest + 2)


def _curve(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> list[str]:
    (left, right), (bottom, top) = x_axis.limits, y_axis.limits
    canvas = plotille.Canvas(x_axis.cells, y_axis.cells, left, bottom, right, top)
    shown = list(_thin_out(points, x_axis))
    for (x0, y0), (x1, y1) in zip(shown, shown[1:] or shown, strict=False):
        canvas.line(x0, y0, x1, y1)
    return str(canvas.plot(linesep="\n")).replace(BLANK, " ").split("\n")


def _thin_out(points: Sequence[Point], axis: Axis) -> Iterator[Point]:
    """Of the points that share a column of dots only those that show: first, lowest, highest, last."""
    left, right = axis.limits
    column_width = (right - left) / (2 * axis.cells)
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int((point[0] - left) / column_width), []).append(point)
    for column in columns.values():
        if len(column) <= 4:  # noqa: PLR2004
            yield from column
        else:
            yield column[0]
            yield from sorted((min(column, key=_y), max(column, key=_y)))
            yield column[-1]


def _y(point: Point) -> float:
    return point[1]


def _x_axis_lines(axis: Axis, margin: int, width: int) -> list[str]:
    labels = axis.labels()
    line = "".join("┬" if cell in labels else "─" for cell in range(axis.cells))
    text = " " * (margin + 2)
    for cell, label in labels.items():
        start = min(margin + 2 + cell - len(label) // 2, width - len(label))
        text = text[:start].ljust(start) + label
    return [f"{'':{margin}} └{line}", text]


def _round_step(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    step = max(step, sys.float_info.min)  # below that, powers of ten are no longer told apart
    power: float = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 5) if step <= factor * power * (1 + 1e-9)), 10 * power)


def _without_minus_zero(text: str) -> str:
    return text.removeprefix("-") if not text.strip("-0.") else text


def _to_ascii(row: str) -> str:
    return "".join(_ASCII.get(char, char if char.isascii() else "*") for char in row)


_ASCII = {"│": "|", "┤": "+", "└": "+", "─": "-", "┬": "+"}
