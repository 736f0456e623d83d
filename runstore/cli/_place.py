"""From what a user types to the run that it names."""

from __future__ import annotations

import os

from runstore import LocalStorage, TrainingRunStore

__all__ = ["store_at"]


def store_at(uri: str) -> TrainingRunStore:
    """The run of a path or URI, whose place is told without the `..` of the way there."""
    store = TrainingRunStore(uri)
    storage = store.storage
    if isinstance(storage, LocalStorage) and ".." in storage.root.parts:
        # `..` after a symbolic link is not the folder before the link: only the system knows where it leads.
        return TrainingRunStore(os.path.realpath(storage.root))
    return store
