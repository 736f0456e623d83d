"""`metrics.jsonl` through the run store: writing, reading what is new, values of every kind."""

import asyncio
import collections
import dataclasses
import decimal
import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runstore import TrainingRunStore, UnstorableValueError
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio


async def test_a_record_is_one_line_with_its_step_first(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """With a step the record is `{"step": step, **metrics}`, without one it is the metrics as they are."""
    await call(store.awrite_metrics, {"loss": 0.5, "tokens": 7}, step=3)
    await call(store.awrite_metrics, {"loss": 0.25})
    await call(store.awrite_metrics, {"loss": 0.125}, 0)
    assert run.get("metrics.jsonl") == (
        b'{"step":3,"loss":0.5,"tokens":7}\n{"loss":0.25}\n{"step":0,"loss":0.125}\n'
    )


async def test_a_step_among_the_metrics_wins(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """`{"step": step, **metrics}` means what it says when the metrics hold a step of their own."""
    await call(store.awrite_metrics, {"loss": 0.5, "step": 9}, step=3)
    assert await call(store.aread_metrics) == [{"step": 9, "loss": 0.5}]


async def test_a_missing_file_has_no_metrics(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Reading a run without metrics gives nothing and creates nothing."""
    assert await call(store.aread_metrics) == []
    assert await call(store.aread_new_metrics) == []
    assert await call(store.aread_metrics_by_step) == []
    assert store.metric_keys() == set()
    assert not run.exists()


async def test_all_and_new_metrics(store: TrainingRunStore, call: Call) -> None:
    """`read_metrics` gives all there is, `read_new_metrics` what came since the last read of either."""
    await call(store.awrite_metrics, {"loss": 3.0}, 0)
    assert await call(store.aread_new_metrics) == [{"step": 0, "loss": 3.0}]
    assert await call(store.aread_new_metrics) == []
    await call(store.awrite_metrics, {"loss": 2.0}, 1)
    assert await call(store.aread_metrics) == [{"step": 0, "loss": 3.0}, {"step": 1, "loss": 2.0}]
    assert await call(store.aread_new_metrics) == []
    await call(store.awrite_metrics, {"loss": 1.0}, 2)
    assert await call(store.aread_new_metrics) == [{"step": 2, "loss": 1.0}]
    assert len(await call(store.aread_metrics)) == 3


async def test_only_what_is_new_is_fetched(
    run: RunFolder, store: TrainingRunStore, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read after an append fetches the appended bytes and at most 1 KiB before them, in one operation."""
    for step in range(2_000):
        store.write_metrics({"loss": 1 / (step + 1)}, step)
    await call(store.aread_metrics)
    fetched = []
    inner = store.storage.aread_range

    async def counted(path: str, offset: int, length: int | None = None) -> bytes:
        data = await inner(path, offset, length)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(store.storage, "aread_range", counted)
    await call(store.awrite_metrics, {"loss": 0.5}, 2_000)
    assert len(await call(store.aread_metrics)) == 2_001
    assert len(fetched) == 1
    assert fetched[0] <= 1024 + 30


async def test_keys_are_those_seen_so_far_without_step(store: TrainingRunStore, call: Call) -> None:
    """`metric_keys` holds every key of the records that were read, except `step`, and is a copy."""
    await call(store.awrite_metrics, {"loss": 1.0}, 0)
    assert store.metric_keys() == set()
    await call(store.aread_metrics)
    await call(store.awrite_metrics, {"eval/acc": 0.5}, 0)
    assert store.metric_keys() == {"loss"}
    await call(store.aread_new_metrics)
    keys = store.metric_keys()
    assert keys == {"loss", "eval/acc"}
    keys.clear()
    assert store.metric_keys() == {"loss", "eval/acc"}


async def test_a_list_that_was_returned_stays_as_it_was(store: TrainingRunStore, call: Call) -> None:
    """The list of a read is the caller's own: later reads do not add to it, clearing it loses nothing."""
    await call(store.awrite_metrics, {"loss": 1.0}, 0)
    first = await call(store.aread_metrics)
    await call(store.awrite_metrics, {"loss": 2.0}, 1)
    assert len(await call(store.aread_metrics)) == 2
    assert len(first) == 1
    first.clear()
    assert len(await call(store.aread_metrics)) == 2


async def test_the_buffer_keeps_the_newest_50_000(run: RunFolder, store: TrainingRunStore) -> None:
    """`read_metrics` gives the newest 50,000 records at most; `read_new_metrics` all that are new."""
    run.put("metrics.jsonl", b"".join(b'{"step":%d}\n' % step for step in range(50_010)))
    assert len(await store.aread_new_metrics()) == 50_010
    kept = await store.aread_metrics()
    assert [kept[0]["step"], kept[-1]["step"], len(kept)] == [10, 50_009, 50_000]


@dataclasses.dataclass
class Pair:
    low: float
    high: float


class Torchlike:
    """A 0-d tensor: a number by `item`, and nothing that JSON knows."""

    def item(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.float16(0.25), 0.25),
        (np.int64(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),  # noqa: FBT003  a numpy value, not a flag
        (np.array(1.5), 1.5),
        (np.arange(6)[::2], [0, 2, 4]),
        (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (Torchlike(), 2.5),
        (decimal.Decimal("0.5"), 0.5),
        (Pair(1.0, 2.0), {"low": 1.0, "high": 2.0}),
        ({"a": [np.int32(1), {"b": np.float32(2)}]}, {"a": [1, {"b": 2.0}]}),
        ((1, 2), [1, 2]),
        (2**63, 2**63),
        (None, None),
        ("\u2028 \x85 \U0001f600", "\u2028 \x85 \U0001f600"),
    ],
)
async def test_b01_numbers_of_other_libraries(
    run: RunFolder, store: TrainingRunStore, call: Call, value: object, expected: object
) -> None:
    """Numbers of numpy, torch and the like become numbers, arrays lists, and come back as such."""
    await call(store.awrite_metrics, {"value": value}, 0)
    (read,) = await call(store.aread_metrics)
    assert read["value"] == expected
    (line,) = run.get("metrics.jsonl").decode().splitlines()
    assert json.loads(line)["value"] == expected


@pytest.mark.parametrize(
    ("metrics", "key_path"),
    [
        ({"loss": 1.0, "bad": {1, 2}}, r"\['bad'\]"),
        ({"loss": 1.0, "bad": Path("/data")}, r"\['bad'\]"),
        ({"loss": 1.0, "nested": {"list": [1, object()]}}, r"\['nested'\]\['list'\]\[1\]"),
        ({"loss": 1.0, "raw": b"bytes"}, r"\['raw'\]"),
        ({"loss": 1.0, "function": len}, r"\['function'\]"),
        ({"loss": 1.0, "type": int}, r"\['type'\]"),
        ({"loss": 1.0, "complex": 1j}, r"\['complex'\]"),
        ({"loss": 1.0, "array": np.array([object()])}, r"\['array'\]\[0\]"),
    ],
)
async def test_b01_what_cannot_be_stored_names_its_key_path(
    run: RunFolder, store: TrainingRunStore, call: Call, metrics: dict[str, Any], key_path: str
) -> None:
    """A value without a JSON form raises `TypeError` with its key path; nothing is written anywhere."""
    for step in (None, 1):
        with pytest.raises(TypeError, match=key_path) as caught:
            await call(store.awrite_metrics, metrics, step)
        assert isinstance(caught.value, UnstorableValueError)
    assert not run.exists()


async def test_b01_an_unstorable_record_leaves_its_neighbours_alone(
    run: RunFolder, store: TrainingRunStore
) -> None:
    """Of many records written at once the one that cannot be stored fails alone; order is call order."""
    values: list[Any] = [*range(20)]
    values[7] = {1}
    outcomes = await asyncio.gather(
        *(store.awrite_metrics({"value": value}) for value in values), return_exceptions=True
    )
    assert [index for index, outcome in enumerate(outcomes) if outcome is not None] == [7]
    assert isinstance(outcomes[7], TypeError)
    assert [record["value"] for record in await store.aread_metrics()] == [*range(7), *range(8, 20)]


@pytest.mark.parametrize("metrics", [[1], [], "text", 5])
async def test_what_is_no_mapping_is_no_record(run: RunFolder, store: TrainingRunStore, metrics: Any) -> None:
    """Metrics that are no mapping raise a `TypeError`, with a step and without; nothing is written."""
    for step in (None, 1):
        with pytest.raises(TypeError):
            await store.awrite_metrics(metrics, step)
    assert not run.exists()


@pytest.mark.parametrize(
    "metrics",
    [
        collections.OrderedDict(loss=0.5),
        collections.ChainMap({"loss": 0.5}),
        types.MappingProxyType({"loss": 0.5}),
    ],
    ids=["OrderedDict", "ChainMap", "MappingProxyType"],
)
async def test_any_mapping_is_a_record(
    store: TrainingRunStore, call: Call, metrics: Mapping[str, Any]
) -> None:
    """Mappings of other types are taken, with a step and without."""
    await call(store.awrite_metrics, metrics)
    await call(store.awrite_metrics, metrics, 1)
    assert await call(store.aread_metrics) == [{"loss": 0.5}, {"step": 1, "loss": 0.5}]


async def test_nan_infinities_and_none_are_four_values(run: RunFolder, store: TrainingRunStore) -> None:
    """nan, inf, -inf and None come back as they are, by this package and by Python's own json."""
    metrics = {"nan": math.nan, "inf": math.inf, "ninf": -math.inf, "none": None, "np": np.float32("nan")}
    await store.awrite_metrics(metrics, 1)
    (line,) = run.get("metrics.jsonl").splitlines()
    for read in (*await store.aread_metrics(), json.loads(line)):
        assert math.isnan(read["nan"])
        assert math.isnan(read["np"])
        assert [read["inf"], read["ninf"], read["none"]] == [math.inf, -math.inf, None]


async def test_a_record_after_a_torn_line_is_kept(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """What a crashed writer left unfinished costs only itself, not the next record."""
    run.put("metrics.jsonl", b'{"step":1,"loss":0.5}\n{"step":2,"lo')
    await call(store.awrite_metrics, {"loss": 0.25}, 3)
    assert [record["step"] for record in await call(store.aread_metrics)] == [1, 3]
    assert run.get("metrics.jsonl").endswith(b'\n{"step":2,"lo\n{"step":3,"loss":0.25}\n')


async def test_a_subclass_of_the_awaited_write(tmp_path: Path, call: Call) -> None:
    """Whoever overrides `awrite_metrics` alone has it used by both colours; a sync one is its own."""

    class Host(TrainingRunStore):
        async def awrite_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
            await super().awrite_metrics({**metrics, "host": "a"}, step)

    class Below(Host):
        pass

    class Own(Host):
        def write_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
            super().write_metrics({**metrics, "own": True}, step)

    for kind in (Host, Below, Own):
        await call(kind(tmp_path).awrite_metrics, {}, 1)
        kind(tmp_path).write_metrics({}, 2)
    twice = [{"step": 1, "host": "a"}, {"step": 2, "host": "a"}]
    first, last = {"step": 1, "host": "a"}, {"step": 2, "own": True, "host": "a"}
    records = TrainingRunStore(tmp_path).read_metrics()
    assert records[:4] == twice * 2
    assert records[4] in (first, {"own": True, **first})  # the sync colour of `call` is `write_metrics`
    assert records[5:] == [last]
