"""Records of an evaluation: their stored form, and back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import BenchmarkResult, RunMetadata, StoredTrajectory, StoredTurn

TEXT = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
METRICS = st.dictionaries(TEXT, NUMBERS, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
COUNTS = st.integers(0, 10_000)
TURNS = st.builds(StoredTurn, role=TEXT, content=TEXT, token_count=COUNTS, metadata=OBJECTS)
RECORDS = st.one_of(
    TURNS,
    st.builds(
        StoredTrajectory,
        idx=COUNTS, benchmark=TEXT, example_id=TEXT, turns=st.lists(TURNS, max_size=3), reward=NUMBERS,
        metrics=METRICS, logs=OBJECTS, error=st.none() | TEXT, time_seconds=NUMBERS,
    ),
    st.builds(
        BenchmarkResult,
        name=TEXT, score=NUMBERS, num_examples=COUNTS, num_correct=COUNTS, num_errors=COUNTS,
        num_truncated=COUNTS, metrics=METRICS, time_seconds=NUMBERS,
        pass_at_k=st.dictionaries(st.integers(1, 64), NUMBERS, max_size=3),
    ),
    st.builds(
        RunMetadata,
        run_id=TEXT, model_name=TEXT, checkpoint_path=st.none() | TEXT, checkpoint_name=st.none() | TEXT,
        benchmarks=st.lists(TEXT, max_size=3), timestamp=TEXT, config=OBJECTS, scores=METRICS,
    ),
)  # fmt: skip


@given(record=RECORDS, extra=OBJECTS)
def test_a_record_comes_back_from_json(record: Any, extra: dict[str, Any]) -> None:
    """What `to_dict` gives is JSON, and `from_dict` makes the same record of it, whatever is beside it."""
    row = record.to_dict()
    stored = json.loads(json.dumps(row))
    assert stored == row
    unknown = {f"unknown {key}": value for key, value in extra.items()}
    assert type(record).from_dict({**unknown, **stored}) == record


def test_defaults() -> None:
    """A stored object with the least that it needs has the defaults for the rest."""
    assert StoredTrajectory.from_dict({"idx": 1, "benchmark": "b"}) == StoredTrajectory(1, "b")
    assert StoredTrajectory.from_dict({"idx": 1, "benchmark": "b", "turns": None}).turns == []
    result = BenchmarkResult.from_dict({"name": "b", "score": 0.5, "num_examples": 2, "num_correct": 1})
    assert (result.num_errors, result.pass_at_k, result.metrics) == (0, {}, {})
    for kind in (StoredTrajectory, BenchmarkResult, RunMetadata, StoredTurn):
        with pytest.raises(TypeError):
            kind.from_dict({})


def test_pass_at_k_has_ints_here_and_strings_in_json() -> None:
    """As existing files have it."""
    result = BenchmarkResult("b", 0.5, 2, 1, pass_at_k={1: 0.5, 10: 1.0})
    assert result.to_dict()["pass_at_k"] == {"1": 0.5, "10": 1.0}
    assert BenchmarkResult.from_dict(result.to_dict()).pass_at_k == {1: 0.5, 10: 1.0}


@pytest.mark.parametrize(
    ("counts", "completed", "score"),
    [((10, 4, 1, 1), 8, 0.5), ((10, 0, 0, 0), 10, 0.0), ((3, 0, 2, 1), 0, 0.0), ((0, 0, 0, 0), 0, 0.0)],
)
def test_scores_of_what_was_completed(
    counts: tuple[int, int, int, int], completed: int, score: float
) -> None:
    """Examples that failed or were truncated are not completed; nothing completed scores 0.0."""
    examples, correct, errors, truncated = counts
    result = BenchmarkResult("b", 0.0, examples, correct, num_errors=errors, num_truncated=truncated)
    assert (result.num_completed, result.score_completed) == (completed, score)
