"""Bytes to records: the block parser, the per-line parser and the rules agree on any bytes."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runstore import MalformedFileError
from runstore.jsonl import _decode, _scan
from runstore.jsonl._position import Position
from tests.jsonl import reference, strategies
from tests.jsonl.reference import same


def places(parsed: _decode.Parsed) -> list[tuple[int, int]]:
    return [(problem.line, problem.offset) for problem in parsed.problems]


def whole_lines(data: bytes) -> bytes:
    return data if data.endswith(b"\n") else data + b"\n"


@given(strategies.files)
@example(b'{"a":1},{"b":2}\n{"c":[{"x":1}\n{"y":2}]}\n')
@example(b'{"a":1},"%b",{"b":2}\n{"c":[1\n2]}\n' % strategies.LOOKALIKE.encode())
@example(b'{"a":1},{"b":2},{"c":3}\n{"d":4}\n')
@example(b'{"a":1},0,{"b":2}\n{"c":1\n,"d":2}\n')
@example(b'{"a":1},0,{"b":2}\n{"c":1\n"d":2}\n')
@example(b'{"a":1},0,{"b":2}\n{"c":"x\n,0,y"}\n')
@example(b'{"a":1},0,{"b":2}\n{"c":"}\n{"}\n')
@example(b'{"a":1},0,{"b":2}\n{"c":{"d":1}\n{"e":2}}\n')
@example(b'{"a":1},0\n0,{"b":2}\n')
@example(b'{"a":1}\n0\n{"b":2}\n')
@example(b'{"a":1},0,0\n,{"b":2}\n')
@example(b'{"a":NaN,NaN:1}\n{"a":NaN,NaN :1}\n')
@example(b'{"a":NaN,"a":1}\n')
@example(b'{"c":[1\n2]}\n{"a":1}\n')
@example(b'{"a":1}\n\n{"b":NaN}\n')
@example(b'{"a":NaN}\n{"a":NaN,"a":1}\n')
@example(b"\xef\xbb\xbf\n\0\0\n\r\n")
def test_block_and_line_parser_follow_the_rules(data: bytes) -> None:
    """For any bytes, both ways give the records, problems and places that the rules name."""
    data = whole_lines(data)
    expected = reference.read(data)
    for parse in (_decode.parse_lines, _decode._parse_each_line):
        parsed = parse(data)
        assert same(parsed.records, expected.records)
        assert places(parsed) == expected.problems
        assert parsed.replaced == expected.replaced
        assert parsed.lines == data.count(b"\n")
        assert all(problem.reason for problem in parsed.problems)


@given(strategies.clean_files, strategies.files)
def test_a_block_taken_as_a_whole_is_taken_rightly(clean: bytes, data: bytes) -> None:
    """What either quick way accepts is what the rules say; a clean block is never left to the slow one."""
    for block in (clean + b'{"a":1}\n', whole_lines(data)):
        expected = reference.read(block)
        for parse in (_decode._parse_block, _decode._parse_block_with_bare_numbers):
            records = parse(block)
            assert records is None or (same(records, expected.records) and not expected.problems)


def test_nan_in_every_line_stays_on_the_quick_way() -> None:
    """A block of a diverged run, with key names that hold the tokens too, is parsed as a whole."""
    lines = [
        {"step": i, "loss": math.nan, "num_NaN": 1, "up": [math.inf, {"x": -math.inf}], "is NaN": "NaN"}
        for i in range(50)
    ]
    for separators in ((",", ":"), (", ", ": ")):
        data = b"".join(json.dumps(line, separators=separators).encode() + b"\n" for line in lines)
        assert _decode._parse_block(data) is None
        records = _decode._parse_block_with_bare_numbers(data)
        assert records is not None
        assert same(records, lines)


@given(strategies.split_files(), st.integers(1, 300), st.integers(0, 3_000))
def test_records_do_not_depend_on_how_the_bytes_arrive(
    parts: list[bytes], piece_size: int, most_work: int
) -> None:
    """Pieces of any size, cut anywhere and taken in any number of steps, give what the whole holds."""
    data = b"".join(parts)
    expected = reference.read(data)
    position, records, problems, replaced = Position(), [], [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "PIECE_SIZE", piece_size)
        patch.setattr(_scan, "MOST_WORK", most_work)
        for part in parts:
            for parsed, after in _scan.steps(position, part):
                before, position = position, after
                records += parsed.records
                replaced += parsed.replaced
                problems += [
                    ((before.line or 0) - 1 + line, before.offset + at) for line, at in places(parsed)
                ]
    assert same(records, expected.records)
    assert problems == expected.problems
    assert replaced == expected.replaced
    assert position.line == data.count(b"\n") + 1
    assert data.startswith(position.anchor, position.offset - len(position.anchor))
    assert data[position.offset :] == position.tail


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(1, 64))
def test_pieces_are_whole_lines_and_together_the_bytes(data: bytes, start: int, piece_size: int) -> None:
    """Pieces follow one another without a gap, and only the last may lack its newline."""
    start = min(start, len(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "PIECE_SIZE", piece_size)
        cut = list(_scan.pieces(data, start))
    assert b"".join(cut) == data[start:]
    assert all(piece.endswith(b"\n") for piece in cut[:-1])
    assert not cut or b"\n" not in cut[-1] or cut[-1].endswith(b"\n")


def test_c02_bare_numbers() -> None:
    """NaN, the infinities and numbers beyond a double come back as floats, next to intact keys."""
    data = (
        b'{"s":1}\n{"s":2,"l":NaN}\n{"s":3,"l":-Infinity}\n{"s":4,"l":Infinity}\n{"s":5,"l":1e400}\n{"s":6}\n'
    )
    parsed = _decode.parse_lines(data)
    expected = [{"s": 1}, {"s": 2, "l": math.nan}, {"s": 3, "l": -math.inf}]
    expected += [{"s": 4, "l": math.inf}, {"s": 5, "l": math.inf}, {"s": 6}]
    assert same(parsed.records, expected)
    assert not parsed.problems


@pytest.mark.parametrize(
    ("data", "steps"),
    [
        (b'\xef\xbb\xbf{"s":1}\n{"s":2}\n', [1, 2]),
        (b'{"s":1}\n\xef\xbb\xbf{"s":2}\n{"s":3}\n', [1, 2, 3]),
        (b'{"s":1}\n\xef\xbb\xbf\n{"s":2}\n', [1, 2]),
        (b'{"s":1}\r\n{"s":2}\r\n', [1, 2]),
        (b'{"s":1}\r\n{"s":2}\n\r\n{"s":3}\n', [1, 2, 3]),
        (b'{"s":1}\xef\xbb\xbf{"s":2}\n', [1, 2]),
        (b'\0\0\0{"s":1}\n\0\0\n', [1]),
    ],
)
def test_c08_marks_and_line_ends_are_invisible(data: bytes, steps: list[int]) -> None:
    """Byte order marks, carriage returns and NUL bytes around records are neither records nor problems."""
    parsed = _decode.parse_lines(data)
    assert [record["s"] for record in parsed.records] == steps
    assert parsed.problems == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_c08_a_document_in_another_encoding_is_a_clear_error(encoding: str) -> None:
    """A configuration that is not UTF-8 is named as such, with its place, never taken as another value."""
    data = '{"name": "Zoë"}'.encode(encoding)
    with pytest.raises(MalformedFileError, match=r"file:///run/config\.json") as caught:
        _decode.decode_document(data, "file:///run/config.json")
    if encoding == "utf-16":
        assert "UTF-16" in str(caught.value)


def test_c16_two_objects_in_a_line_and_foreign_lines() -> None:
    """Both objects of a merged line are kept; conflict markers and a git-LFS pointer are reported."""
    data = b'{"s":1}{"s":2}\n<<<<<<< HEAD\n{"s":3}\n=======\n{"s":4} {"s":5}tail\n>>>>>>> theirs\n'
    parsed = _decode.parse_lines(data)
    assert [record["s"] for record in parsed.records] == [1, 2, 3, 4, 5]
    assert places(parsed) == [(1, 15), (3, 36), (4, 59), (5, 64)]
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    assert _decode.parse_lines(pointer).records == []
    assert places(_decode.parse_lines(pointer)) == [(0, 0), (1, 43), (2, 63)]


def test_g03_long_integers_never_cost_the_record() -> None:
    """Integers of 64 bits are exact, longer ones floats or infinity; the record's other keys stay."""
    numbers = [2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, int("7" * 30), int("7" * 400)]
    data = b"".join(b'{"i":%d,"s":%d}\n' % (number, index) for index, number in enumerate(numbers))
    records = _decode.parse_lines(data).records
    assert [record["s"] for record in records] == list(range(7))
    values = [2**63, 2**64 - 1, -(2**63), float(2**64), float(-(2**63)), 7.777777777777778e29, math.inf]
    assert same([record["i"] for record in records], values)
    assert reference.read(data).records == records


def test_g05_lone_surrogates_are_read() -> None:
    r"""A file with `\ud800` gives all its records."""
    data = b'{"t":"ok"}\n{"t":"half \\ud83d"}\n{"t":"ok"}\n'
    assert [record["t"] for record in _decode.parse_lines(data).records] == ["ok", "half \ud83d", "ok"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0c", "\x1c"])
def test_only_a_newline_splits(separator: str) -> None:
    """Other line separators inside a string cut no record in two (control characters are no JSON)."""
    data = json.dumps({"t": f"a{separator}b"}, ensure_ascii=False).encode() + b"\n"
    assert _decode.parse_lines(data).records == [{"t": f"a{separator}b"}]


@pytest.mark.parametrize("tail", [b"}", b"}x", b'}{"b', b"", b"} "])
def test_a_long_line_is_found_with_its_newline_at_the_latest(tail: bytes) -> None:
    """A record longer than the ordinary look at an unfinished line comes once, whatever follows it."""
    long = b'{"a":"' + b"x" * (2 * _scan.LONG_TAIL) + b'"'
    first, position = _scan.take(Position(), long + tail)
    last, _ = _scan.take(position, b"}\n" if not tail else b"\n")
    records = first.records + last.records
    assert records == [{"a": "x" * (2 * _scan.LONG_TAIL)}]


@given(strategies.documents)
def test_documents_are_read_exactly(document: dict[str, object]) -> None:
    """A document comes back as the standard library reads it, integers of any size included."""
    data = json.dumps(document).encode()
    assert same(_decode.decode_document(data, "file:///x"), json.loads(data))
    assert same(_decode.decode_document(b"\xef\xbb\xbf" + data, "file:///x"), json.loads(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[1]", "holds a JSON list"),
        (b"null", "holds a JSON NoneType"),
        (b'{"a":', "is not valid JSON"),
        (b'{"a":1}{"b":2}', "is not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a":%b}' % (b"7" * 5000), "is not valid JSON"),
    ],
)
def test_a_broken_document_says_what_is_wrong(data: bytes, words: str) -> None:
    """Each way to be no document has its own words, with the URL and what to do."""
    with pytest.raises(MalformedFileError, match=words) as caught:
        _decode.decode_document(data, "file:///run/config.json")
    assert "file:///run/config.json" in str(caught.value)
