"""Records in a JSONL file: the codec, the incremental reader and the followers."""

from runstore.jsonl._batch import Batch
from runstore.jsonl._encode import strict_json
from runstore.jsonl._follow import AsyncFollower, Follower
from runstore.jsonl._reader import IncrementalReader
from runstore.jsonl._reader_state import MalformedLine, MalformedLines

__all__ = [
    "AsyncFollower",
    "Batch",
    "Follower",
    "IncrementalReader",
    "MalformedLine",
    "MalformedLines",
    "strict_json",
]
