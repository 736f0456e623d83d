"""The plain loop that people write without a package: a file, `json`, one line a record."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

__all__ = ["append_line", "read_lines"]


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_lines(path: Path) -> float:
    """Seconds to read every record, keeping the newest 50,000."""
    start = time.perf_counter()
    with path.open(encoding="utf-8") as file:
        deque(map(json.loads, file), maxlen=50_000)
    return time.perf_counter() - start
