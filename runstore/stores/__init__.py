"""What a training run is: names of files, types of records."""

from runstore.stores._records import CheckpointRecord, IterationInfo
from runstore.stores._training import TrainingRunStore

__all__ = ["CheckpointRecord", "IterationInfo", "TrainingRunStore"]
