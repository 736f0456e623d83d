"""`timing_spans.jsonl` through the run store."""

from typing import Any

import pytest

from runstore import TrainingRunStore, UnstorableValueError
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio

SPANS: list[dict[str, Any]] = [
    {"name": "sample", "duration": 1.5, "wall_start": 100.0, "wall_end": 101.5},
    {"name": "train", "duration": 0.5, "wall_start": 101.5, "wall_end": 102.0},
]


async def test_one_record_a_step(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """The spans of a step are one line, `{"step": …, "spans": […]}`, and come back as they were."""
    await call(store.awrite_timing_spans, 3, SPANS)
    await call(store.awrite_timing_spans, 4, tuple(SPANS[:1]))
    assert run.get("timing_spans.jsonl").startswith(b'{"step":3,"spans":[{"name":"sample",')
    assert run.get("timing_spans.jsonl").count(b"\n") == 2
    assert await call(store.aread_timing) == [{"step": 3, "spans": SPANS}, {"step": 4, "spans": SPANS[:1]}]


@pytest.mark.parametrize("spans", [[], ()])
async def test_nothing_for_no_spans(run: RunFolder, store: TrainingRunStore, call: Call, spans: Any) -> None:
    """An empty list writes nothing: no record, no file, no folder."""
    await call(store.awrite_timing_spans, 3, spans)
    assert await call(store.aread_timing) == []
    assert not run.exists()


async def test_all_records_and_only_new_bytes(
    run: RunFolder, store: TrainingRunStore, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`read_timing` gives all records each time, and fetches only what came since the last call."""
    for step in range(200):
        store.write_timing_spans(step, SPANS * 10)
    assert len(await call(store.aread_timing)) == 200
    fetched = []
    inner = store.storage.aread_range

    async def counted(path: str, offset: int, length: int | None = None) -> bytes:
        data = await inner(path, offset, length)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(store.storage, "aread_range", counted)
    await call(store.awrite_timing_spans, 200, SPANS)
    assert [record["step"] for record in await call(store.aread_timing)] == list(range(201))
    assert sum(fetched) < 2048


async def test_a_span_that_cannot_be_stored(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A value without a JSON form is named by its key path; nothing is written."""
    with pytest.raises(UnstorableValueError, match=r"\['spans'\]\[0\]\['name'\]"):
        await call(store.awrite_timing_spans, 3, [{"name": object()}])
    assert not run.exists()


@pytest.mark.parametrize("spans", [SPANS[0], "abc", b"abc"])
async def test_spans_are_a_list(run: RunFolder, store: TrainingRunStore, call: Call, spans: Any) -> None:
    """One span by itself, or a string, is refused before anything is written."""
    with pytest.raises(UnstorableValueError, match="a list of objects"):
        await call(store.awrite_timing_spans, 3, spans)
    assert not run.exists()
