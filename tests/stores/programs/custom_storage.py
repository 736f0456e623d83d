"""A storage of the user's own: sync methods only, no base class, pickled between processes."""

import asyncio
import base64
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any, Self

from runstore import IncrementalReader, StorageStat, TrainingRunStore


def show(label: str, value: object) -> None:
    sys.stdout.write(f"{label}: {json.dumps(value, sort_keys=True, default=str)}\n")


class EncodedStorage:
    """Keeps every file encoded, a line an append, in one folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    def _file(self, path: str) -> Path:
        return Path(self.root) / base64.urlsafe_b64encode(path.encode()).decode()

    def _paths(self) -> list[str]:
        return [base64.urlsafe_b64decode(child.name).decode() for child in Path(self.root).iterdir()]

    def url(self, path: str = "") -> str:
        return f"encoded:///{path}"

    def read(self, path: str) -> bytes:
        lines = self._file(path).read_bytes().split(b"\n")
        return b"".join(base64.b64decode(line) for line in lines)

    def write(self, path: str, data: bytes) -> None:
        self._file(path).write_bytes(base64.b64encode(data) + b"\n")

    def append(self, path: str, data: bytes) -> None:
        with self._file(path).open("ab") as file:
            file.write(base64.b64encode(data) + b"\n")

    def exists(self, path: str) -> bool:
        return self._file(path).exists()

    def stat(self, path: str) -> StorageStat | None:
        if not self.exists(path):
            return None
        return StorageStat(size=len(self.read(path)), mtime=self._file(path).stat().st_mtime)

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        data = self.read(path)[offset:]
        return data if length is None else data[:length]

    def list_dir(self, prefix: str) -> list[str]:
        start = prefix + "/" if prefix else ""
        below = [path[len(start) :] for path in self._paths() if path.startswith(start)]
        return sorted({path.split("/")[0] for path in below})

    def remove(self, path: str) -> None:
        self._file(path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        pass

    def flush(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.flush()


def write_elsewhere(storage: EncodedStorage, step: int) -> list[dict[str, object]]:
    """In another process: a store of the same storage."""
    store = TrainingRunStore(storage, "run")
    store.write_metrics({"process": "child"}, step)
    return store.read_metrics()


async def awaited(store: TrainingRunStore) -> None:
    await asyncio.gather(store.awrite_metrics({"awaited": 1}, 3), store.aread_config())
    show("awaited", await store.aread_metrics())


def main() -> None:
    storage: Any = EncodedStorage(sys.argv[1])
    with storage:
        store = TrainingRunStore(storage, "run")
        store.write_config({"lr": 0.1})
        store.write_metrics({"loss": 0.5}, 1)
        store.write_rollouts(1, [{"group_idx": 0, "traj_idx": 1, "reward": 2}])
        store.write_logtree(1, {"title": "t"})
        show("urls", [store.url(), store.url("config.json")])
        show("config", store.read_config())
        show("rollouts", [store.read_rollouts(1), store.read_single_rollout(1, 0, 1)])
        show("iterations", [info.iteration for info in store.list_iterations()])
        show("logtrees", store.list_logtrees(1))
        reader = IncrementalReader(storage, "run/metrics.jsonl")
        show("read", [reader.read(), reader.read(), reader.has_data()])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            show("elsewhere", pool.apply(write_elsewhere, (storage, 2)))
        show("here", [reader.read(), store.read_new_metrics(), store.read_metrics()])
        asyncio.run(awaited(store))
        show("dropped", store.truncate_metrics(2))
        show("left", [store.read_metrics(), storage.list_dir("run")])


if __name__ == "__main__":
    main()
