"""Results: samples, rows of the two tables, and the goals that they are held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median

__all__ = ["Growth", "Row", "Sample", "Unit"]


class Unit(Enum):
    """How a value is shown: its factor, its decimals, its name."""

    MILLISECONDS = (1e3, 1, " ms")
    MICROSECONDS = (1e6, 1, " µs")
    SECONDS = (1.0, 2, " s")
    MEGABYTES = (1e-6, 0, " MB")
    TIMES = (1.0, 2, " x")
    COUNT = (1.0, 0, "")
    AVERAGE = (1.0, 1, "")

    def show(self, value: float) -> str:
        """A value without the name of its unit."""
        factor, decimals, _ = self.value
        return f"{value * factor:,.{decimals}f}"

    def __str__(self) -> str:
        return str(self.value[2])


@dataclass(frozen=True, slots=True)
class Sample:
    """The values that one contender got, one a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value in the middle."""
        return median(self.values)

    def show(self, unit: Unit) -> str:
        """The median, and the smallest and largest value."""
        spread = f" ({unit.show(min(self.values))}..{unit.show(max(self.values))})"
        return f"{unit.show(self.median)}{unit}" + (spread if len(self.values) > 1 else "")

    def over(self, other: Sample) -> float:
        """How many times the other's value: the median of the rounds' ratios."""
        return median(mine / (its or 1e-9) for mine, its in zip(self.values, other.values, strict=True))


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; smaller values are better."""

    what: str
    unit: Unit
    samples: Mapping[str, Sample]
    """By contender: `runstore`, `peer`, `plain json`, `limit`; all but the first may be missing."""
    times_peer: float | None = None
    """Goal: at least this many times better than the peer."""
    of_limit: float | None = None
    """Goal: at least this share of what the limit does in the same time."""
    at_most: float | None = None
    """Goal: a value of at most this."""

    def over_peer(self) -> float | None:
        """How many times better than the peer."""
        return self._ratio("peer")

    def over_limit(self) -> float | None:
        """The share of the limit's speed."""
        return self._ratio("limit")

    def _ratio(self, other: str) -> float | None:
        return self.samples[other].over(self.samples["runstore"]) if other in self.samples else None

    def goals(self) -> list[str]:
        """The goals in words."""
        goals = []
        if self.times_peer is not None:
            goals.append(f"≥ {self.times_peer:g} x peer")
        if self.of_limit is not None:
            goals.append(f"≥ {self.of_limit:g} of limit")
        if self.at_most is not None:
            goals.append(f"≤ {self.unit.show(self.at_most)}{self.unit}")
        return goals

    def summary(self) -> str:
        """The row in one line."""
        over_peer, over_limit = self.over_peer(), self.over_limit()
        return (
            f"{self.what}: {self.samples['runstore'].show(self.unit)}"
            + ("" if over_peer is None else f", {over_peer:.1f} x peer")
            + ("" if over_limit is None else f", {over_limit:.2f} of limit")
            + (f"; MISSED {', '.join(self.goals())}" if self.missed() else "")
        )

    def missed(self) -> bool:
        """Whether a goal is missed; one against a contender that is not there cannot be."""
        over_peer, over_limit = self.over_peer(), self.over_limit()
        return (
            (self.times_peer is not None and over_peer is not None and over_peer < self.times_peer)
            or (self.of_limit is not None and over_limit is not None and over_limit < self.of_limit)
            or (self.at_most is not None and self.samples["runstore"].median > self.at_most)
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """What one operation costs as the data grows: one sample a size, from 1 x on."""

    what: str
    unit: Unit
    samples: tuple[Sample, ...]
    at_most: float
    """Goal: at the largest size at most this many times the cost at the smallest."""

    def growth(self) -> float:
        """The cost at the largest size over the cost at the smallest."""
        return self.samples[-1].over(self.samples[0])

    def summary(self) -> str:
        """The row in one line."""
        missed = f"; MISSED <= {self.at_most:g} x" if self.missed() else ""
        return f"{self.what}: {self.samples[0].show(self.unit)}, grows {self.growth():.2f} x{missed}"

    def missed(self) -> bool:
        """Whether the cost grows by more than the goal allows."""
        return self.growth() > self.at_most
