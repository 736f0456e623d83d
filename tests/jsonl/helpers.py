"""Storages that count or fail, and waiting with a deadline."""

import asyncio
import gc
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runstore import LocalStorage, StorageIOError, StorageStat
from runstore.jsonl import _poller

DEADLINE = 10.0


class Counting(LocalStorage):
    """Local files, with a note of every byte that was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_bytes = 0
        self.reads = 0

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = await super().aread_range(path, offset, length)
        self.reads += 1
        self.read_bytes += len(data)
        return data


class Failing(LocalStorage):
    """Local files that cannot be read while `failures` is above 0; each failure takes one off."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failures = 0

    def fail_once_more(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise StorageIOError(5, "made to fail", str(self.root))

    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = await super().aread_range(path, offset, length)
        self.fail_once_more()
        return data

    async def astat(self, path: str) -> StorageStat | None:
        stat = await super().astat(path)
        self.fail_once_more()
        return stat


def line(**record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def lines(start: int, stop: int, **more: Any) -> bytes:
    return b"".join(line(step=step, **more) for step in range(start, stop))


def append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    temp = path.with_name(path.name + ".new")
    temp.write_bytes(data)
    temp.replace(path)


def steps(records: list[dict[str, Any]]) -> list[Any]:
    return [record["step"] for record in records]


def wait_until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


async def await_until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


def pollers_of(root: Path) -> list[Any]:
    """The pollers at work for files below a folder."""
    gc.collect()
    return [key for key in list(_poller.pollers._by_file) if key[0] == str(root)]


def fork() -> int:
    """`os.fork`, which newer Pythons warn of while other threads run: that it works is what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
