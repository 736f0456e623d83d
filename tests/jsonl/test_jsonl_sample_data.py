"""Files of real runs, where they are at hand: exactly what stdlib `json` accepts line by line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runstore import IncrementalReader
from tests.jsonl.reference import same

SAMPLES = Path(
    os.environ.get("RUNSTORE_SAMPLE_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data"
)
FILES = sorted(SAMPLES.rglob("*.jsonl")) if SAMPLES.is_dir() else []


def by_stdlib(data: bytes) -> list[dict[str, Any]]:
    found = []
    for text in data.split(b"\n"):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


@pytest.mark.skipif(not FILES, reason="the sample files are not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SAMPLES)))
def test_a_real_file_reads_as_stdlib_json_reads_it(path: Path) -> None:
    """Every record that `json.loads` accepts comes, in order, and nothing else."""
    expected = by_stdlib(path.read_bytes())
    reader = IncrementalReader(str(path.parent), path.name)
    records = reader.read()
    assert expected
    assert same(records, expected)
    assert reader.malformed.count == 0
    assert same(reader.records, expected)
