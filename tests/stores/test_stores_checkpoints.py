"""`checkpoints.jsonl` through the run store, and its record."""

import dataclasses
import logging
from typing import Any

import pytest

from runstore import CheckpointRecord, InvalidInputError, TrainingRunStore, UnstorableValueError
from tests.stores.helpers import Call, RunFolder


@pytest.mark.anyio
async def test_rows_come_back_in_file_order(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Dicts and records are rows alike, one line each, `None` fields left out, in the order written."""
    await call(store.awrite_checkpoint, {"name": "000020", "batch": 20, "loss": 0.5})
    await call(store.awrite_checkpoint, CheckpointRecord("000010", batch=10, extra={"step": 11}))
    assert run.get("checkpoints.jsonl") == (
        b'{"name":"000020","batch":20,"loss":0.5}\n{"name":"000010","batch":10,"step":11}\n'
    )
    assert await call(store.aread_checkpoints) == [
        {"name": "000020", "batch": 20, "loss": 0.5},
        {"name": "000010", "batch": 10, "step": 11},
    ]
    assert await call(store.aread_checkpoint_records) == [
        CheckpointRecord("000020", batch=20, extra={"loss": 0.5}),
        CheckpointRecord("000010", batch=10, extra={"step": 11}),
    ]


@pytest.mark.anyio
async def test_no_file_no_checkpoints(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A run without checkpoints has none, and asking creates nothing."""
    assert await call(store.aread_checkpoints) == []
    assert await call(store.aread_checkpoint_records) == []
    assert not run.exists()


@pytest.mark.anyio
@pytest.mark.parametrize("record", [{}, {"batch": 1}, {"name": None}, ["name"], "name", None])
async def test_a_checkpoint_must_hold_a_name(
    run: RunFolder, store: TrainingRunStore, call: Call, record: Any
) -> None:
    """What is no object with a `name` raises a `ValueError`; nothing is written."""
    with pytest.raises(InvalidInputError, match="'name'"):
        await call(store.awrite_checkpoint, record)
    assert not run.exists()


@pytest.mark.anyio
async def test_a_value_without_a_json_form(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """It is named by its key path; nothing is written."""
    with pytest.raises(UnstorableValueError, match=r"\['state_path'\]"):
        await call(store.awrite_checkpoint, {"name": "a", "state_path": object()})
    assert not run.exists()


@pytest.mark.anyio
async def test_a_row_without_a_name_is_skipped_and_reported_once(
    run: RunFolder, store: TrainingRunStore, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows without a name stay in the raw read; the typed one leaves them out, with one warning a call."""
    run.put("checkpoints.jsonl", b'{"name":"a"}\n{"batch":1}\n{"name":null}\n{"name":"b"}\n')
    assert len(await call(store.aread_checkpoints)) == 4
    assert caplog.records == []
    for calls in (1, 2):
        records = await call(store.aread_checkpoint_records)
        assert [record.name for record in records] == ["a", "b"]
        assert len(caplog.records) == calls
        assert "skipped 2 row(s) without a name" in caplog.text
        assert store.url("checkpoints.jsonl") in caplog.text


@pytest.mark.anyio
async def test_lines_that_are_no_records_are_skipped_and_reported(
    run: RunFolder, store: TrainingRunStore, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage costs the damaged lines only; one warning a call names the first with line and offset."""
    run.put("checkpoints.jsonl", b'{"name":"a"}\n<<<<<<< HEAD\n{"name":"b"}{"name":"c"}\n[1]\n{"name":"d"}')
    assert [row["name"] for row in await call(store.aread_checkpoints)] == ["a", "b", "c", "d"]
    (message,) = caplog.messages
    assert "skipped 2 malformed line(s), the first is line 2 at byte 13: not a JSON object" in message
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.anyio
async def test_damage_far_into_a_file_is_reported_where_it_is(
    run: RunFolder, store: TrainingRunStore, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """The place of the first damaged line counts from the start of the file, not of the piece parsed."""
    line = b'{"name":"a","pad":"%b"}\n' % (b"x" * 1_000)
    run.put("checkpoints.jsonl", line * 500 + b"damaged\n" + line)
    assert len(await call(store.aread_checkpoints)) == 501
    (message,) = caplog.messages
    assert f"the first is line 501 at byte {len(line) * 500}:" in message


@pytest.mark.anyio
async def test_another_process_s_checkpoint_is_seen(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """Checkpoints are read anew by each call."""
    await call(store.awrite_checkpoint, {"name": "a"})
    assert len(await call(store.aread_checkpoints)) == 1
    run.put("checkpoints.jsonl", b'{"name":"b"}\n')
    assert await call(store.aread_checkpoints) == [{"name": "b"}]


@pytest.mark.anyio
async def test_a_checkpoint_is_flushed_when_the_call_returns(
    run: RunFolder, store: TrainingRunStore, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is in the file, and the storage is flushed after it was appended."""
    at_flush = []
    inner = store.storage.aflush

    async def noted() -> None:
        at_flush.append(await store.storage.aread("checkpoints.jsonl"))
        await inner()

    monkeypatch.setattr(store.storage, "aflush", noted)
    await call(store.awrite_checkpoint, {"name": "a"})
    assert at_flush == [b'{"name":"a"}\n']


def test_to_dict_leaves_out_none_and_merges_extra() -> None:
    """`to_dict` holds the fields that are set, in order, and `extra` at the top level; False and 0 stay."""
    record = CheckpointRecord("final", batch=0, final=False, extra={"loss": None, "k": 1})
    assert list(record.to_dict().items()) == [
        ("name", "final"),
        ("batch", 0),
        ("final", False),
        ("loss", None),
        ("k", 1),
    ]


def test_from_dict_keeps_unknown_keys() -> None:
    """Keys that are no fields go to `extra`, a key named `extra` too; the dict itself is not changed."""
    row = {"name": "a", "epoch": 2, "step": 7, "extra": {"deep": 1}, "state_path": "s", "sampler_path": "p"}
    before = dict(row)
    record = CheckpointRecord.from_dict(row)
    assert record == CheckpointRecord(
        "a", epoch=2, state_path="s", sampler_path="p", extra={"step": 7, "extra": {"deep": 1}}
    )
    assert record.to_dict() == row == before


def test_from_dict_needs_a_name() -> None:
    """A row without a name is a `KeyError`."""
    with pytest.raises(KeyError, match="name"):
        CheckpointRecord.from_dict({"batch": 1})


def test_has_and_get() -> None:
    """A field is there when it is not `None`, an extra key when it is a key; `get` falls back for neither."""
    record = CheckpointRecord("a", batch=0, extra={"loss": None})
    assert [record.has(key) for key in ("name", "batch", "epoch", "loss", "other")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert [record.get(key, "default") for key in ("name", "batch", "epoch", "loss", "other")] == [
        "a",
        0,
        None,
        None,
        "default",
    ]
    assert record.get("other") is None


def test_a_known_key_in_extra_is_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A field's name inside `extra` is dropped and reported, so that `to_dict` never says it twice."""
    extra = {"batch": 9, "name": "other", "loss": 1}
    record = CheckpointRecord("a", batch=1, extra=extra)
    assert record.extra == {"loss": 1}
    assert record.to_dict() == {"name": "a", "batch": 1, "loss": 1}
    assert extra == {"batch": 9, "name": "other", "loss": 1}
    (message,) = caplog.messages
    assert "batch, name" in message


def test_the_fields_of_a_checkpoint_record() -> None:
    """The fields, in order: existing code makes records by position."""
    names = [field.name for field in dataclasses.fields(CheckpointRecord)]
    assert names == ["name", "batch", "epoch", "final", "state_path", "sampler_path", "extra"]
    one, other = CheckpointRecord("a"), CheckpointRecord("a")
    one.extra["k"] = 1
    assert other.extra == {}
