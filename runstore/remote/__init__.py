"""Runs in a bucket, or on any other filesystem of fsspec."""

from runstore.remote._storage import FsspecStorage, S3Storage

__all__ = ["FsspecStorage", "S3Storage"]
