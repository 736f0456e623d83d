"""A dashboard that polls a growing file, hands its reader to other processes and checks its types."""

import json
import multiprocessing
import sys
from pathlib import Path

from runstore import (
    AsyncStorage,
    IncrementalReader,
    LocalStorage,
    Storage,
    StorageStat,
    TrainingRunStore,
    storage_from_uri,
    storage_join,
)


def show(label: str, value: object) -> None:
    sys.stdout.write(f"{label}: {json.dumps(value, sort_keys=True, default=str)}\n")


def read_elsewhere(reader: IncrementalReader, path: str, line: str) -> list[object]:
    """In another process: read on, append, read again."""
    records: list[object] = [*reader.read()]
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line)
    return [*records, *reader.read(), reader.total_read]


def main() -> None:
    root = Path(sys.argv[1]) / "data"
    plain, by_uri = storage_from_uri(str(root)), storage_from_uri(f"file://{root}")
    show("types", [type(plain).__name__, isinstance(plain, Storage), isinstance(plain, AsyncStorage)])
    show("no storage", [isinstance(5, Storage), isinstance("s3://b", AsyncStorage)])
    show("join", [storage_join("a/", "/b", "", "c//d", "../e"), storage_join(), storage_join("", "/")])
    path = storage_join("run", "metrics.jsonl")
    reader = IncrementalReader(plain, path, max_records=3)
    show("missing", [reader.read(), reader.has_data(), plain.exists(path), plain.stat(path)])
    by_uri.append(path, b'{"step": 0, "loss": 1.0}\n{"step": 1,')
    show("partial", [reader.read(), reader.has_data(), sorted(reader.known_keys)])
    by_uri.append(path, b' "acc": 0.5}\n')
    show("whole", [reader.read(), sorted(reader.known_keys), reader.total_read])
    by_uri.append(path, b'not json\n{"step": 2}\n\n{"step": 3, "text": "\xc3\xa9"}\n')
    show("damaged", [reader.read(), reader.records, reader.total_read])
    stat = plain.stat(path)
    show("stat", [stat is not None and stat.size, isinstance(stat, StorageStat), StorageStat(1, 2.0)])
    show("range", [str(plain.read_range(path, 0, 9)), str(plain.read_range(path, 5, 0))])
    show("listed", [plain.list_dir(""), plain.list_dir("run"), plain.list_dir("none")])
    line = '{"step": 4}\n'
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        show("elsewhere", pool.apply(read_elsewhere, (reader, str(root / path), line)))
        store = TrainingRunStore(LocalStorage(root), "run")
        show("store elsewhere", pool.apply(store.read_metrics))
        pool.apply(store.write_metrics, ({"from": "child"}, 5))
    show("here", [reader.read(), reader.total_read, store.read_metrics()])
    plain.write("run/config.json", b'{"a": 1}')
    show("config", store.read_config())
    try:
        plain.read_range("run/none", 0)
    except FileNotFoundError as error:
        show("not found", isinstance(error, OSError))
    try:
        plain.read("../outside")
    except ValueError as error:
        show("escapes", "escapes" in str(error))
    with LocalStorage(root) as storage:
        storage.remove("run/none")
        storage.remove_dir("run")
        storage.remove(path)
        storage.flush()
        show("removed", [storage.exists(path), storage.list_dir("run")])


if __name__ == "__main__":
    main()
