"""From what a user types to the run that it names."""

from __future__ import annotations

import os

from runstore import LocalStorage, TrainingRunStore

__all__ = ["poll_seconds", "store_at"]

# On a local disk a follower is told of changes, and looks so often besides.
LOCAL_POLL_SECONDS = 0.25
# Each look at a bucket is a request, and finds nothing before the writer's next flush.
REMOTE_POLL_SECONDS = 1.0


def store_at(uri: str) -> TrainingRunStore:
    """The run of a path or URI, whose place is told without the `..` of the way there."""
    store = TrainingRunStore(uri)
    storage = store.storage
    if isinstance(storage, LocalStorage) and ".." in storage.root.parts:
        # `..` after a symbolic link is not the folder before the link: only the system knows where it leads.
        return TrainingRunStore(os.path.realpath(storage.root))
    return store


def poll_seconds(store: TrainingRunStore) -> float:
    """How long to wait between looks for new records of a run."""
    return LOCAL_POLL_SECONDS if isinstance(store.storage, LocalStorage) else REMOTE_POLL_SECONDS
