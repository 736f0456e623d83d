"""`code.diff` through the run store."""

import sys
from typing import Any

import anyio
import pytest

from runstore import TrainingRunStore
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio

NOT_UTF8 = b"-caf\xe9\n+caf\xc3\xa9\n\x00\xff\r\n"


@pytest.mark.parametrize(
    ("diff", "stored"),
    [
        pytest.param("", b"", id="empty"),
        pytest.param("-é\n+\u2028\U0001f600\r\n", "-é\n+\u2028\U0001f600\r\n".encode(), id="text"),
        pytest.param(NOT_UTF8.decode(errors="surrogateescape"), NOT_UTF8, id="surrogate escapes"),
        pytest.param("lone \ud83d half", b"lone \xed\xa0\xbd half", id="lone surrogate"),
        pytest.param(NOT_UTF8, NOT_UTF8, id="bytes"),
        pytest.param(bytearray(b"abc"), b"abc", id="bytearray"),
        pytest.param(b"", b"", id="no bytes"),
    ],
)
async def test_b13_a_diff_is_stored_without_loss(
    run: RunFolder, store: TrainingRunStore, call: Call, diff: Any, stored: bytes
) -> None:
    """Text in UTF-8, bytes as they are, and what Python read as surrogate escapes as it was."""
    await call(store.awrite_code_diff, "an older and longer diff that leaves nothing behind")
    await call(store.awrite_code_diff, diff)
    assert run.files() == {"code.diff": stored}


async def test_b13_what_git_printed_is_what_is_stored(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """The output of a program, decoded as Python decodes it, is stored byte for byte."""
    code = f"import sys; sys.stdout.buffer.write({NOT_UTF8!r})"
    finished = await anyio.run_process([sys.executable, "-c", code])
    printed = finished.stdout.decode(errors="surrogateescape")
    await call(store.awrite_code_diff, printed)
    assert run.get("code.diff") == NOT_UTF8


async def test_b13_a_diff_of_200_mb(run: RunFolder, store: TrainingRunStore) -> None:
    """A diff of any size is stored."""
    line = "+" + "x" * 998 + "\n"
    await store.awrite_code_diff(line * 200_000)
    path = run.root / "code.diff"
    with path.open("rb") as file:
        assert file.seek(0, 2) == 200_000_000
        file.seek(-1_000, 2)
        assert file.read() == line.encode()
    path.unlink()


@pytest.mark.parametrize("diff", [None, 5, ["a"]])
async def test_what_is_neither_text_nor_bytes(
    run: RunFolder, store: TrainingRunStore, call: Call, diff: Any
) -> None:
    """Anything but text and bytes is a `TypeError`, and nothing is written."""
    with pytest.raises(TypeError):
        await call(store.awrite_code_diff, diff)
    assert not run.exists()
