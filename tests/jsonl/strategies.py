"""Bytes and records that tell right readers from nearly right ones."""

import itertools
import json
import math

from hypothesis import strategies as st

LOOKALIKE = "0f" * 10  # as long as the random string that the block parser joins lines with

OBJECTS = [
    b'{"a":1}',
    b'{"step": 3, "loss": 0.25, "text": "a,b}{"}',
    b'{"b":[1,2,{"c":null}],"d":{"e":[]}}',
    b"{}",
    b'{"n":NaN}',
    b'{"n": NaN, "i":-Infinity ,"j":[Infinity,NaN, NaN]}',
    b'{"deep":[{"x":[NaN]},{"y":{"z":-Infinity}}]}',
    b'{"s":"NaN, NaN, Infinity]"}',
    b'{"s":"x: NaN}","n":NaN}',
    b'{"num_NaN":1,"NaN":NaN}',
    b'{"a":NaN,"a":1}',
    b'{"a":1,"a":NaN}',
    b'{"x":1e400,"y":-1e400}',
    b'{"s":"\\ud800"}',
    b'{"s":"\\udc00\\ud83d\\ude00"}',
    b'{"s":"\\ud800","n":NaN,"i":12345678901234567890123}',
    '{"s":"ünï ☃ 😀 \u2028\u2029\u0085"}'.encode(),
    b'{"e":"\xff\xe2\x82"}',
    b'{"e":"\xed\xa0\x80","n":NaN}',
    b'{"i":18446744073709551615,"j":-9223372036854775808}',
    b'{"i":18446744073709551616,"j":-9223372036854775809}',
    b'{"i":%b}' % (b"7" * 30),
    b'{"i":-%b}' % (b"7" * 400),
    b'{"i":%b}' % (b"7" * 5000),
    b'{"z":-0,"f":-0.0,"g":1E5,"h":0.1e-400}',
    b'{"d":' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"d":' * 300 + b"NaN" + b"}" * 300,
    b'{"k":"%b"}' % LOOKALIKE.encode(),
    b'{"k":"%bNaN","n":NaN}' % LOOKALIKE.encode(),
]
BROKEN = [
    b'{"c":[{"x":1}',
    b'{"y":2}]}',
    b'{"a":1},{"b":2}',
    b'{"a":1},0,{"b":2}',
    b'{"a":1},"%b",{"b":2}' % LOOKALIKE.encode(),
    b'{"k":1,NaN:2}',
    b"{ NaN }",
    b'{"a":NaN x}',
    b'{"a":-NaN}',
    b'{"a":01}',
    b'{"a":1.}',
    b'{"a":1,}',
    b'{"a":"\x01"}',
    b'{"a":"\\x"}',
    b'{"a":1}}',
    b'{"d":' * 20_000,
    b'{"d":' * 20_000 + b"1" + b"}" * 20_000,
    b"[1,2]",
    b"NaN",
    b"null",
    b'"text"',
    b"<<<<<<< HEAD",
    b"oid sha256:4d7a",
]
PIECES = [
    *(b"\n",) * 3,
    *(b"\r", b"\r\n", b"\0", b"\0\0\0", b" ", b"\t", b"\xef\xbb\xbf", b"\xef", b"\xbb\xbf", b"\x0b", b"\x85"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\xe2\x82", b"\xff", b"NaN", b"Infinity", b"-", b"1"),
    *('"\u2028"'.encode(), b'"%b"' % LOOKALIKE.encode(), b',"%b",' % LOOKALIKE.encode()),
]

finite_floats = st.floats(allow_nan=False, allow_infinity=False)
any_text = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**62, 2**70)
    | st.floats()
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 5e-324])
    | any_text
    | st.sampled_from(["\u2028\u2029\u0085", "null", "NaN", "\ud800", "🤯", "a\nb\r\x1c\0"])
)


def _nested(keys: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=8,
    )


keys = any_text | st.sampled_from(["step", "loss", "NaN", "null", "\u2028"])
documents = st.dictionaries(keys, _nested(keys), max_size=6)
odd_keys = keys | st.integers() | st.booleans() | st.none() | st.floats()

_line = st.sampled_from(OBJECTS) | documents.map(lambda record: json.dumps(record).encode())
_whole_line = _line.map(lambda line: line + b"\n")
_fragment = (
    _whole_line
    | _line
    | st.sampled_from([line + b"\n" for line in OBJECTS])
    | st.sampled_from(PIECES)
    | st.sampled_from(BROKEN)
    | st.sampled_from([line + b"\n" for line in BROKEN])
    | st.binary(max_size=6)
)
clean_files = st.lists(_whole_line, max_size=12).map(b"".join)
files = clean_files | st.lists(_fragment, max_size=14).map(b"".join)


@st.composite
def split_files(draw: st.DrawFn) -> list[bytes]:
    """A file in the pieces in which its bytes arrive."""
    data = draw(files)
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=8))
    edges = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]
