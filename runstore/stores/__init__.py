"""What a training run is: names of files, types of records."""

from runstore.stores._eval import EvalStore
from runstore.stores._eval_records import BenchmarkResult, RunMetadata, StoredTrajectory, StoredTurn
from runstore.stores._records import CheckpointRecord, IterationInfo
from runstore.stores._registry import RunRegistry
from runstore.stores._run_info import RunInfo
from runstore.stores._training import TrainingRunStore

__all__ = [
    "BenchmarkResult",
    "CheckpointRecord",
    "EvalStore",
    "IterationInfo",
    "RunInfo",
    "RunMetadata",
    "RunRegistry",
    "StoredTrajectory",
    "StoredTurn",
    "TrainingRunStore",
]
