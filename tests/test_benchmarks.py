"""The benchmarks, each run once with very little data, so that they cannot rot."""

from pathlib import Path

import pytest

from tests.bench_package import load_benchmarks

load_benchmarks()

# Importable only now.
from benchmarks._all import BENCHMARKS  # noqa: E402
from benchmarks._measure import SMALL, Bench, alternate, load_peer  # noqa: E402
from benchmarks._report import END, START, render, write_readme  # noqa: E402
from benchmarks._row import Growth, Row, Sample, Unit  # noqa: E402


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SMALL, load_peer())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_runs_and_can_be_shown(name: str, bench: Bench) -> None:
    """Each benchmark runs at the smallest scale, with a column for the peer only where it is installed."""
    results = BENCHMARKS[name](bench)
    text = render(results)
    assert results
    for result in results:
        assert result.what in text
        if isinstance(result, Row):
            assert "runstore" in result.samples
            assert bench.peer is not None or "peer" not in result.samples


def test_contenders_take_turns_and_each_is_first_as_often() -> None:
    """Rounds alternate, begin with another contender each time, and a first one only warms up."""
    order = ""

    def contender(name: str) -> float:
        nonlocal order
        order += name
        return float(len(order))

    samples = alternate(3, {"a": lambda: contender("a"), "b": lambda: contender("b")})
    assert order == "ba" + "ab" + "ba" + "ab"
    assert samples == {"a": Sample((3.0, 6.0, 7.0)), "b": Sample((4.0, 5.0, 8.0))}


@pytest.mark.parametrize(
    ("goals", "missed"),
    [
        ({}, False),
        ({"times_peer": 4}, False),
        ({"times_peer": 4.1}, True),
        ({"of_limit": 0.5}, False),
        ({"of_limit": 0.51}, True),
        ({"at_most": 2}, False),
        ({"at_most": 1.9}, True),
        ({"times_peer": 1, "of_limit": 0.1, "at_most": 1}, True),
    ],
)
def test_a_goal_is_missed_when_the_median_is_on_its_wrong_side(goals: dict[str, float], missed: bool) -> None:
    """Each goal counts by itself, and a missed one is marked in the table."""
    samples = {
        "runstore": Sample((1.0, 2.0, 3.0)),
        "peer": Sample((4.0, 8.0, 12.1)),
        "limit": Sample((0.5, 1.0, 1.0)),
    }
    row = Row("what", Unit.SECONDS, samples, **goals)
    assert row.missed() is missed
    assert ("**missed**" in render([row])) is missed


def test_a_goal_against_a_missing_peer_is_not_missed() -> None:
    """Without the peer there is nothing to compare with, and its column stays empty."""
    row = Row("what", Unit.SECONDS, {"runstore": Sample((1.0,))}, times_peer=5)
    assert row.over_peer() is None
    assert not row.missed()


def test_growth_is_the_largest_size_over_the_smallest() -> None:
    """Cost that follows the data's size misses the goal, cost that does not meets it."""
    steady = Growth("what", Unit.SECONDS, (Sample((1.0,)), Sample((5.0,)), Sample((1.4,))), 1.5)
    growing = Growth("what", Unit.SECONDS, (Sample((1.0,)), Sample((1.2,)), Sample((1.6,))), 1.5)
    assert not steady.missed()
    assert growing.missed()


def test_the_report_replaces_only_what_is_between_the_markers(tmp_path: Path) -> None:
    """What surrounds the tables in README.md stays; a README.md without a place for them is an error."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    write_readme("new", readme)
    write_readme("newer", readme)
    assert readme.read_text() == f"before\n{START}\n\nnewer\n\n{END}\nafter\n"
    readme.write_text("no place")
    with pytest.raises(ValueError, match="benchmarks:start"):
        write_readme("new", readme)
    assert readme.read_text() == "no place"
