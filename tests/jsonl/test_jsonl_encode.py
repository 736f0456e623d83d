"""Records and documents to bytes, and back without loss."""

import argparse
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import math
import uuid
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstore import RunStoreError, TrainingRunStore, strict_json
from runstore.errors import UnstorableValueError
from runstore.jsonl._decode import decode_document, parse_lines
from runstore.jsonl._encode import encode_document, encode_record
from tests.jsonl import strategies
from tests.jsonl.reference import read_int, same


def read_back(record: dict[Any, Any]) -> dict[str, Any]:
    (found,) = parse_lines(encode_record(record)).records
    return found


def rounded(value: Any) -> Any:
    """Integers beyond 64 bits as JSONL gives them back."""
    if type(value) is int:
        return read_int(str(value))
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(strategies.odd_keys, strategies.scalars | strategies.documents, max_size=6))
def test_a_record_comes_back(record: dict[Any, Any]) -> None:
    """Any JSON-like record is one line for every splitter, and reads back, also by stdlib json, as itself."""
    line = encode_record(record)
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    exact = json.loads(json.dumps(record))
    assert same(json.loads(line), exact)
    assert same(parse_lines(line).records, [rounded(exact)])
    assert not parse_lines(line).problems


@given(strategies.documents)
def test_a_document_comes_back_exactly(document: dict[str, Any]) -> None:
    """A document reads back as itself, integers of any size included, by stdlib json too."""
    data = encode_document(document)
    assert same(decode_document(data, "file:///x"), document)
    assert same(json.loads(data), document)


@given(strategies.documents)
def test_strict_json_holds_no_bare_number(document: dict[str, Any]) -> None:
    """The strict form has no token that JSON lacks, and differs from the record in nothing else."""

    def refuse(token: str) -> None:
        pytest.fail(f"{token} is no JSON")

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(item) for key, item in value.items()}
        if isinstance(value, list):
            return [named(item) for item in value]
        return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value

    text = strict_json(document)
    assert "\n" not in text
    assert same(json.loads(text, parse_constant=refuse), named(document))


def test_g01_four_values_stay_four(tmp_path: Path) -> None:
    """NaN, both infinities and None stay four values, also for stdlib json; browsers get strict JSON."""
    values = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "none": None}
    store = TrainingRunStore(tmp_path)
    store.write_metrics(values, step=1)
    expected = {"step": 1, **values}
    assert same(store.read_metrics(), [expected])
    line = (tmp_path / "metrics.jsonl").read_bytes()
    assert same(json.loads(line), expected)
    strict = strict_json(store.read_metrics())
    assert strict == '[{"step":1,"nan":"NaN","inf":"Infinity","minus":"-Infinity","none":null}]'


@dataclasses.dataclass
class Point:
    x: float
    label: Any = None


class Colour(str, enum.Enum):  # noqa: UP042  the mixin's own `str()` is what is tested
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Shout(str):
    """A string whose `str()` is another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "SHOUT"


class ZeroDimensional:
    """What torch's 0-d tensors offer."""

    def __init__(self, value: float) -> None:
        self.value = value

    def tolist(self) -> float:
        return self.value


class Tensor:
    """What torch's tensors offer; `item` fails where there are several values."""

    def tolist(self) -> list[list[float]]:
        return [[1.0, 2.0], [3.0, math.nan]]

    def item(self) -> float:
        raise RuntimeError("a Tensor with 4 elements cannot be converted to Scalar")


@pytest.mark.parametrize("also", [{}, {"big": 2**70}, {"bad": math.nan}], ids=["quick", "long int", "nan"])
def test_b01_numbers_of_other_libraries(also: dict[str, Any]) -> None:
    """Scalars become numbers and bools, arrays lists, on the quick way and on the slower one alike."""
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    record = {
        "f32": np.float32(0.5),
        "f64": np.float64(1 / 3),
        "f16": np.float16(1.5),
        "long": np.longdouble(2.5),
        "i64": np.int64(-7),
        "u8": np.uint8(200),
        "bool": np.bool_(True),  # noqa: FBT003
        "zero": np.array(4.5),
        "strided": base[::2, 1::2],
        "empty": np.array([]),
        "text": np.str_("abc"),
        "torch0": ZeroDimensional(1.25),
        "torch": Tensor(),
        "decimal": decimal.Decimal("0.1"),
        "fraction": Fraction(1, 4),
        "nested": {"list": [np.int32(1), (np.float32(2), None)]},
        "enum": Colour.RED,
        "level": Level.HIGH,
        "str": Shout("quiet"),
        "point": Point(np.float64(0.5), label={"p": Point(1.0)}),
        "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "day": dt.date(2026, 1, 2),
        "id": uuid.UUID(int=5),
        "ordered": OrderedDict(b=1, a=2),
    }
    expected = {
        "f32": 0.5,
        "f64": 1 / 3,
        "f16": 1.5,
        "long": 2.5,
        "i64": -7,
        "u8": 200,
        "bool": True,
        "zero": 4.5,
        "strided": [[1.0, 3.0], [9.0, 11.0]],
        "empty": [],
        "text": "abc",
        "torch0": 1.25,
        "torch": [[1.0, 2.0], [3.0, math.nan]],
        "decimal": 0.1,
        "fraction": 0.25,
        "nested": {"list": [1, [2.0, None]]},
        "enum": "red",
        "level": 3,
        "str": "quiet",
        "point": {"x": 0.5, "label": {"p": {"x": 1.0, "label": None}}},
        "when": "2026-01-02T03:04:05+00:00",
        "day": "2026-01-02",
        "id": "00000000-0000-0000-0000-000000000005",
        "ordered": {"b": 1, "a": 2},
    }
    assert same(read_back(record | also), rounded(expected | also))


def test_numbers_that_only_turn_into_nan_keep_it() -> None:
    """NaN inside a foreign number or array is no null either."""
    record = {
        "a": np.float32(math.nan),
        "b": np.array([1.0, math.inf]),
        "c": ZeroDimensional(-math.inf),
        "d": None,
    }
    assert same(read_back(record), {"a": math.nan, "b": [1.0, math.inf], "c": -math.inf, "d": None})


def test_odd_keys_become_the_keys_that_stdlib_json_writes() -> None:
    """Keys that are no strings are written as `json.dumps` does, enums as their value."""
    record = {
        1: "a",
        2.5: "b",
        False: "c",
        None: "d",
        math.inf: "e",
        Colour.RED: "f",
        Level.HIGH: "g",
        Shout("q"): "h",
    }
    found = read_back(record)
    assert found == {
        "1": "a",
        "false": "c",
        "2.5": "b",
        "null": "d",
        "Infinity": "e",
        "red": "f",
        "3": "g",
        "q": "h",
    }
    assert read_back({np.int64(4): 1, dt.date(2026, 1, 2): 2}) == {"4": 1, "2026-01-02": 2}


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"a": {"b": [1, {2, 3}]}}, "['a']['b'][1]"),
        ({"a": Path("x")}, "['a']"),
        ({"a": b"x"}, "['a']"),
        ({"a": [object()]}, "['a'][0]"),
        ({"a": 1j}, "['a']"),
        ({"a": decimal.Decimal("sNaN")}, "['a']"),
        ({"a": np.array([1, object()], dtype=object)}, "['a'][1]"),
        ({"a": int}, "['a']"),
        ({"a": {(1, 2): 3}}, "['a']"),
    ],
)
def test_b01_what_cannot_be_stored_is_named_and_costs_nothing(
    tmp_path: Path, record: dict[str, Any], path: str
) -> None:
    """A value without a JSON form raises TypeError with its key path, and no byte is written."""
    store = TrainingRunStore(tmp_path)
    store.write_metrics({"a": 1})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(TypeError) as caught:
        store.write_metrics(record)
    assert isinstance(caught.value, UnstorableValueError)
    assert isinstance(caught.value, RunStoreError)
    assert path in str(caught.value)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_cycles_and_bottomless_values_are_refused_by_path() -> None:
    """What holds itself, or is nested deeper than can be read back, is an error that names the place."""
    cycle: dict[str, Any] = {"a": []}
    cycle["a"].append(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for encode in (encode_record, encode_document, strict_json):
        with pytest.raises(UnstorableValueError, match=r"\['a'\]\[0\] holds itself"):
            encode(cycle)
        with pytest.raises(UnstorableValueError, match="nested too deeply"):
            encode({"a": deep})
    shared = [1]
    assert read_back({"a": shared, "b": [shared, shared], "c": math.nan})["b"] == [[1], [1]]


def test_nesting_beyond_the_quick_encoder() -> None:
    """Nesting beyond 254 levels, which orjson refuses to write, is written and read all the same."""
    deep: Any = 1
    for _ in range(150):
        deep = {"d": [deep]}
    assert same(read_back({"deep": deep}), {"deep": deep})


def test_g03_integers_are_written_exactly(tmp_path: Path) -> None:
    """2**64 and -2**63-1 stand in the file digit by digit; a config gives them back exactly."""
    store = TrainingRunStore(tmp_path)
    numbers = {"a": 2**64, "b": -(2**63) - 1, "c": 2**64 - 1, "d": int("9" * 400)}
    store.write_metrics(numbers)
    assert json.loads((tmp_path / "metrics.jsonl").read_bytes()) == numbers
    store.write_config(numbers)
    assert same(store.read_config(), numbers)
    assert same(TrainingRunStore(tmp_path).read_config(), numbers)


def test_g05_half_an_emoji_does_not_cost_the_batch(tmp_path: Path) -> None:
    """64 rollouts of which one ends in a lone surrogate all come back."""
    rollouts = [{"i": i, "text": "half \ud83d" if i == 7 else "whole 😀"} for i in range(64)]
    store = TrainingRunStore(tmp_path)
    store.write_rollouts(3, rollouts)
    assert TrainingRunStore(tmp_path).read_rollouts(3) == rollouts


def test_separators_of_other_tools_are_escaped() -> None:
    """No line splitter, and no shell tool that reads UTF-8, finds a break inside a record."""
    line = encode_record({"a\u2028": "b\u2029c\u0085"})
    assert line == b'{"a\\u2028":"b\\u2029c\\u0085"}\n'
    assert encode_record({"a": "ü☃"}) == '{"a":"ü☃"}\n'.encode()


class Model(pydantic.BaseModel):
    width: int = 3
    folder: Path = Path("/data")


class Slotted:
    __slots__ = ()

    def __repr__(self) -> str:
        return "Slotted()"


class Plain:
    def __init__(self) -> None:
        self.rate = 0.1
        self._private = 1


class Failing:
    def to_dict(self) -> dict[str, Any]:
        raise KeyError("not now")

    def __repr__(self) -> str:
        return "Failing()"


def a_function() -> None: ...


@pytest.mark.parametrize("also", [{}, {"big": 2**70}, {"bad": math.nan}], ids=["quick", "long int", "nan"])
def test_b11_configurations_take_anything(also: dict[str, Any]) -> None:
    """Everything that a configuration holds becomes readable JSON, on either way through the encoder."""
    config = {
        "path": Path("/data/x"),
        "pure": PurePosixPath("a/b"),
        "enum": Colour.RED,
        "level": Level.HIGH,
        "dataclass": Point(1.0, label=Point(2.0)),
        "model": Model(),
        "namespace": argparse.Namespace(lr=0.1, nested=argparse.Namespace(a=1)),
        "set": {3, 1, 2},
        "frozen": frozenset({"b", "a"}),
        "bytes": b"ab\xff",
        "datetime": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "delta": dt.timedelta(minutes=1.5),
        "dtype": np.dtype("float32"),
        "scalar": np.float32(0.5),
        "array": np.arange(3),
        "function": a_function,
        "builtin": len,
        "method": str.upper,
        "class": Point,
        "partial": functools.partial(int, base=2),
        "slotted": Slotted(),
        "plain": Plain(),
        "failing": Failing(),
        "tuple": (1, (2, 3)),
        "keys": {1: "a", (2, 3): "b", Path("k"): "c", None: "d", Colour.RED: "e"},
    }
    found = decode_document(encode_document(config | also), "file:///x")
    partial = found.pop("partial")
    assert "int" in partial
    expected = {
        "path": "/data/x",
        "pure": "a/b",
        "enum": "red",
        "level": 3,
        "dataclass": {"x": 1.0, "label": {"x": 2.0, "label": None}},
        "model": {"width": 3, "folder": "/data"},
        "namespace": {"lr": 0.1, "nested": {"a": 1}},
        "set": [1, 2, 3],
        "frozen": ["a", "b"],
        "bytes": "ab\\xff",
        "datetime": "2026-01-02T03:04:05+00:00",
        "delta": 90.0,
        "dtype": "float32",
        "scalar": 0.5,
        "array": [0, 1, 2],
        "function": f"{__name__}.a_function",
        "builtin": "builtins.len",
        "method": "str.upper",
        "class": f"{__name__}.Point",
        "slotted": "Slotted()",
        "plain": {"rate": 0.1},
        "failing": "Failing()",
        "tuple": [1, [2, 3]],
        "keys": {"1": "a", "[2, 3]": "b", "k": "c", "null": "d", "red": "e"},
    }
    assert same(found, expected | also)


def test_b11_a_cycle_in_a_configuration_is_reported() -> None:
    """An object that holds itself is an error with its key path, not a hang or a stack overflow."""
    plain = Plain()
    plain.rate = plain  # type: ignore[assignment]
    with pytest.raises(UnstorableValueError, match=r"\['model'\].*holds itself"):
        encode_document({"model": plain})


class Hostile:
    """An object whose own code fails whenever it is asked anything."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __repr__(self) -> str:
        raise RuntimeError

    @property
    def broken(self) -> Any:
        raise ZeroDivisionError

    def __fspath__(self) -> str:
        raise OSError


def test_no_object_stops_a_configuration() -> None:
    """An object that fails to tell about itself is stored as its plain `repr`, and the rest as ever."""
    document = json.loads(encode_document({"lr": 0.1, "hostile": Hostile(), "list": [Hostile()]}))
    assert document["lr"] == 0.1
    assert "Hostile object at" in document["hostile"]
    assert "Hostile object at" in document["list"][0]


def test_a_record_is_encoded_from_deep_in_a_stack() -> None:
    """However deep the caller is, a nested record is stored, or refused with the package's own error."""
    nested: Any = None
    for _ in range(150):
        nested = [nested]

    def encode_at(depth: int) -> None:
        if depth:
            encode_at(depth - 1)
        else:
            with contextlib.suppress(UnstorableValueError):
                encode_record({"nested": nested})

    for depth in range(500, 800, 20):
        encode_at(depth)
