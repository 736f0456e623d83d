"""A filesystem of s3fs that is handed over, on a real server."""

import asyncio
import pickle
import weakref
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem
from s3fs import S3FileSystem

from runstore import FsspecStorage, S3Storage, TrainingRunStore
from tests.s3.server import S3Server


def test_its_options_are_used_and_it_is_not(s3_server: S3Server, s3_prefix: str) -> None:
    """Appends go the way of S3, in every process that the storage gets to; the instance never connects."""
    fs = S3FileSystem(**s3_server.options(), skip_instance_cache=True)
    storage = FsspecStorage(fs, f"{s3_server.bucket}/{s3_prefix}")
    storage.append_lines("f", b"1\n")
    pickle.loads(pickle.dumps(storage)).append_lines("f", b"2\n")
    asyncio.run(storage.aflush())
    head = s3_server.head(f"{s3_prefix}/f")
    assert head["ContentLength"] == 4
    assert "runstore" in head["Metadata"]
    assert storage.read("f") == b"1\n2\n"
    assert fs._s3 is None
    storage.close()


def test_a_folder_of_it_is_a_prefix(s3_server: S3Server, s3_prefix: str) -> None:
    """What a `DirFileSystem` names is the place of the run."""
    folder: Any = DirFileSystem(f"{s3_server.bucket}/{s3_prefix}", S3FileSystem(**s3_server.options()))
    with S3Storage(folder, "runs") as storage:
        TrainingRunStore(storage, "a").write_metrics({"loss": 0.5}, step=1)
    assert s3_server.get(f"{s3_prefix}/runs/a/metrics.jsonl") == b'{"step":1,"loss":0.5}\n'


def test_it_may_be_used_by_others_meanwhile(s3_server: S3Server, s3_prefix: str) -> None:
    """What is written through the instance itself is seen at once, whatever it keeps of its listings."""
    fs = S3FileSystem(**s3_server.options(), skip_instance_cache=True)
    place = f"{s3_server.bucket}/{s3_prefix}"
    storage = FsspecStorage(fs, place)
    assert storage.list_dir("") == []
    fs.pipe_file(f"{place}/a", b"1")
    assert storage.list_dir("") == ["a"]
    storage.write("b", b"2")
    assert storage.list_dir("") == ["a", "b"]
    assert fs.cat_file(f"{place}/b") == b"2"
    storage.close()
    # Now: where it is collected later, s3fs closes it on whatever loop runs then, which fails there.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (finalizer.peek() or [None])[0] is fs:
            finalizer()
