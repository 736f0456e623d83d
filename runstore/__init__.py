"""Keep machine-learning training runs: config, metrics, timing spans, checkpoints, rollouts, log trees.

Every operation exists twice: an async method with the prefix `a`, and its sync twin without it.
"""

from runstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    BucketWarning,
    CredentialsError,
    EventLoopError,
    InvalidInputError,
    MalformedFileError,
    MissingDependencyError,
    NotFoundError,
    RunStoreError,
    RunStoreWarning,
    SpoolKeptWarning,
    StorageFullError,
    StorageIOError,
    UnavailableError,
    UnstorableValueError,
    UploadDelayedWarning,
)
from runstore.jsonl import (
    AsyncFollower,
    Batch,
    Follower,
    IncrementalReader,
    MalformedLine,
    MalformedLines,
    strict_json,
)
from runstore.remote import FsspecStorage, S3Storage
from runstore.storage import (
    AsyncStorage,
    LocalStorage,
    Storage,
    StorageListing,
    StorageStat,
    storage_from_uri,
    storage_join,
)
from runstore.stores import (
    BenchmarkResult,
    CheckpointRecord,
    EvalStore,
    IterationInfo,
    RunInfo,
    RunMetadata,
    RunRegistry,
    StoredTrajectory,
    StoredTurn,
    TrainingRunStore,
)

__all__ = [  # noqa: RUF022  a table of contents
    # A run
    "TrainingRunStore",
    "CheckpointRecord",
    "IterationInfo",
    # Many runs
    "RunRegistry",
    "RunInfo",
    # Evaluations
    "EvalStore",
    "RunMetadata",
    "BenchmarkResult",
    "StoredTrajectory",
    "StoredTurn",
    # Reading and following
    "IncrementalReader",
    "MalformedLine",
    "MalformedLines",
    "Batch",
    "AsyncFollower",
    "Follower",
    "strict_json",
    # Storage
    "Storage",
    "AsyncStorage",
    "LocalStorage",
    "FsspecStorage",
    "S3Storage",
    "StorageStat",
    "StorageListing",
    "storage_from_uri",
    "storage_join",
    # Errors
    "RunStoreError",
    "AccessDeniedError",
    "BucketNotFoundError",
    "CredentialsError",
    "EventLoopError",
    "InvalidInputError",
    "MalformedFileError",
    "MissingDependencyError",
    "NotFoundError",
    "StorageFullError",
    "StorageIOError",
    "UnavailableError",
    "UnstorableValueError",
    # Warnings
    "RunStoreWarning",
    "BucketWarning",
    "SpoolKeptWarning",
    "UploadDelayedWarning",
]

__version__ = "0.1.0"
