"""Bytes at a path: the contract of a storage, and the backends that meet it."""

from runstore.storage._answers import StorageListing, StorageStat
from runstore.storage._base import AsyncStorage, Storage
from runstore.storage._local import LocalStorage
from runstore.storage._paths import storage_join
from runstore.storage._uri import as_storage, storage_from_uri

__all__ = [
    "AsyncStorage",
    "LocalStorage",
    "Storage",
    "StorageListing",
    "StorageStat",
    "as_storage",
    "storage_from_uri",
    "storage_join",
]
