"""The clean series: one record a step."""

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import TrainingRunStore
from runstore.storage._bridge import drive
from runstore.stores._series import merge_by_step
from tests.stores.helpers import Call, RunFolder, turns_of_the_loop

SAMPLES = Path(os.environ.get("RUNSTORE_SAMPLE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def write_lines(run: RunFolder, records: list[dict[str, Any]]) -> None:
    before = run.files().get("metrics.jsonl", b"")
    run.put("metrics.jsonl", before + "".join(json.dumps(record) + "\n" for record in records).encode())


@pytest.mark.anyio
async def test_b02_after_a_resume_the_newer_values_count(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """Steps 0..212, then 200..230 again: the raw read keeps all, the series has each step once, newest."""
    write_lines(run, [{"step": step, "loss": 1.0, "run": "old"} for step in range(213)])
    write_lines(run, [{"step": step, "loss": 2.0, "run": "new"} for step in range(200, 231)])
    before = run.get("metrics.jsonl")
    series = await call(store.aread_metrics_by_step)
    assert [record["step"] for record in series] == list(range(231))
    assert [record["run"] for record in series] == ["old"] * 200 + ["new"] * 31
    raw = await call(store.aread_metrics)
    assert len(raw) == 213 + 31
    assert [record["step"] for record in raw] == [*range(213), *range(200, 231)]
    assert run.get("metrics.jsonl") == before


@pytest.mark.anyio
async def test_b18_train_and_eval_lines_of_a_step_are_joined(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """An eval line joins the train line of its step, lines without an integral step are left out."""
    raw: list[dict[str, Any]] = [
        {"step": 5, "loss": 0.5, "lr": 0.1},
        {"loss": 9.0},
        {"step": "5", "loss": 9.0},
        {"step": True, "loss": 9.0},
        {"step": None, "loss": 9.0},
        {"step": 5.5, "loss": 9.0},
        {"step": [5], "loss": 9.0},
        {"step": {"n": 5}, "loss": 9.0},
        {"step": math.nan, "loss": 9.0},
        {"step": math.inf, "loss": 9.0},
        {"step": 5.0, "eval/acc": 0.75, "lr": 0.2},
        {"step": 4, "loss": 0.6},
        {"step": -1, "loss": 3.0},
    ]
    write_lines(run, raw)
    series = await call(store.aread_metrics_by_step)
    assert series == [
        {"step": -1, "loss": 3.0},
        {"step": 4, "loss": 0.6},
        {"step": 5, "loss": 0.5, "lr": 0.2, "eval/acc": 0.75},
    ]
    assert [type(record["step"]) for record in series] == [int, int, int]
    read = await call(store.aread_metrics)
    assert json.dumps(read) == json.dumps(raw)


@pytest.mark.anyio
async def test_the_series_is_new_each_time(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Changing a record of the series changes neither the raw records nor the next series."""
    write_lines(run, [{"step": 1, "loss": 0.5}])
    (record,) = await call(store.aread_metrics_by_step)
    record["loss"] = 7
    assert await call(store.aread_metrics_by_step) == [{"step": 1, "loss": 0.5}]
    assert await call(store.aread_metrics) == [{"step": 1, "loss": 0.5}]


@pytest.mark.anyio
async def test_the_series_sees_what_is_new(store: TrainingRunStore, call: Call) -> None:
    """Each call reads on, as `read_metrics` does."""
    await call(store.awrite_metrics, {"loss": 0.5}, 1)
    assert len(await call(store.aread_metrics_by_step)) == 1
    await call(store.awrite_metrics, {"eval": 0.75}, 1)
    await call(store.awrite_metrics, {"loss": 0.25}, 2)
    assert await call(store.aread_metrics_by_step) == [
        {"step": 1, "loss": 0.5, "eval": 0.75},
        {"step": 2, "loss": 0.25},
    ]


@pytest.mark.anyio
@pytest.mark.usefixtures("no_stretch")
async def test_a_long_series_leaves_the_loop_free() -> None:
    """Merging 50,000 records may give the loop its turn every 500 of them."""
    records = [{"step": step, **{f"metric/{key}": 1.0 for key in range(10)}} for step in range(50_000)]
    series, turns = await turns_of_the_loop(merge_by_step(records))
    assert len(series) == 50_000
    assert turns >= 100


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["step", "a", "b"]),
            st.one_of(st.integers(-3, 5), st.sampled_from([0.0, 2.0, 2.5, math.inf, True, "2", None])),
        )
    )
)
def test_the_series_against_the_rule(records: list[dict[str, Any]]) -> None:
    """For any records: the steps in order, each key with its last value, the records untouched."""
    before = copy.deepcopy(records)
    stepped = [
        (int(record["step"]), record)
        for record in records
        if isinstance(record.get("step"), int | float)
        and not isinstance(record["step"], bool)
        and record["step"] in range(-3, 6)
    ]
    expected = []
    for step in sorted({step for step, _ in stepped}):
        joined: dict[str, Any] = {}
        for other, record in stepped:
            if other == step:
                joined |= record
        expected.append(joined | {"step": step})
    assert drive(merge_by_step, records) == expected
    assert repr(records) == repr(before)


@pytest.mark.anyio
async def test_the_series_of_a_real_resumed_run(run: RunFolder) -> None:
    """A real resumed run with eval lines of other keys: each step once, nothing of any step lost."""
    sample = SAMPLES / "resumed_scalars.jsonl"
    if not sample.exists():
        pytest.skip("no sample data here")
    run.put("metrics.jsonl", sample.read_bytes())
    store = TrainingRunStore(run)
    raw = [record for record in await store.aread_metrics() if "step" in record]
    series = await store.aread_metrics_by_step()
    assert [record["step"] for record in series] == sorted({record["step"] for record in raw})
    for record in series:
        same = [other for other in raw if other["step"] == record["step"]]
        assert record.keys() == set().union(*same)
        assert record.items() >= same[-1].items()
