"""From what a user names (a path, a URI, a storage of another make) to a `Storage`."""

from __future__ import annotations

import os
import re
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from runstore.errors import InvalidInputError
from runstore.storage._base import Storage
from runstore.storage._local import LocalStorage
from runstore.storage._sync_only import SyncOnlyStorage

__all__ = ["as_storage", "storage_from_uri"]

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):(/*)")
# What begins so is no path, whatever it was meant to be.
_LIKE_URI = re.compile(r"([^/]*):(?=//)")
_BUCKET_SCHEMES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"}
_REMOTE_SCHEMES = _BUCKET_SCHEMES | {"memory", "http", "https", "hdfs", "sftp", "ssh", "ftp"}


def storage_from_uri(uri: str | os.PathLike[str], **kwargs: Any) -> Storage:
    """The storage that a path or URI names.

    Nothing is created or contacted: a folder comes into being with the first write, a bucket never.

    Args:
        uri: A plain path (`~` is expanded), `file:///path` (percent-decoded), `s3://bucket/prefix`
            (literal), or a URI of another scheme that fsspec knows (`gs://`, `az://`, `memory://` …).
        **kwargs: Options of `FsspecStorage` (`flush_interval`) and of the filesystem (`endpoint_url`,
            `anon`, `profile`, `key`, `secret`, `client_kwargs`, `config_kwargs` …); of a local folder
            `fsync`, and it has no use for the others.

    Raises:
        InvalidInputError: It is empty, or a URI that cannot be right.
        MissingDependencyError: A package is missing that the scheme needs; the message says which.
    """
    text = os.fspath(uri)
    if not text:
        msg = "the storage URI is empty; use '.' for the current folder"
        raise InvalidInputError(msg)
    match = _SCHEME.match(text)
    scheme, slashes = (match[1].lower(), match[2]) if match else ("", "")
    if scheme == "file" and slashes:
        return _local(_path_of_file_uri(text), kwargs)
    if len(slashes) == 1 or (scheme in _REMOTE_SCHEMES and not slashes):
        msg = (
            f"{text!r} looks like a URI that lost a slash, as it does when it goes through pathlib.Path; "
            f"pass the string '{scheme}://…' (or './{text}' if a local folder is meant)"
        )
        raise InvalidInputError(msg)
    if match and slashes:
        return _remote(scheme, text[match.end(1) + 3 :], kwargs)
    like_uri = _LIKE_URI.match(text)
    if like_uri:
        msg = (
            f"'{like_uri[1]}' is no scheme of a URI; of filesystems that fsspec chains ('a::b'), pass the "
            "instance to FsspecStorage"
        )
        raise InvalidInputError(msg)
    return _local(text, kwargs)


def _local(folder: str, options: dict[str, Any]) -> Storage:
    return LocalStorage(folder, mkdir=False, fsync=bool(options.get("fsync", False)))


def _remote(scheme: str, rest: str, options: dict[str, Any]) -> Storage:
    from runstore.remote import FsspecStorage, S3Storage  # noqa: PLC0415  they import this package

    if scheme in _BUCKET_SCHEMES and (not rest or rest.startswith("/")):
        msg = f"'{scheme}://{rest}' names no bucket: {scheme}://bucket/prefix"
        raise InvalidInputError(msg)
    if scheme in {"s3", "s3a"}:
        return S3Storage("s3", rest, **options)
    return FsspecStorage(scheme, f"{scheme}://{rest}", **options)


def _path_of_file_uri(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        found = f"names the host {parts.netloc!r}" if parts.netloc else "names no folder"
        msg = f"{uri!r} {found}; a local file URI has three slashes: file:///absolute/path"
        raise InvalidInputError(msg)
    if parts.query or parts.fragment:
        msg = f"{uri!r} has a '?' or '#': write them as %3F and %23 in a file URI"
        raise InvalidInputError(msg)
    return unquote(parts.path, errors="surrogateescape")


def as_storage(source: object) -> Storage:
    """The storage that an argument means.

    Args:
        source: A `Storage`, a path or URI, or an object that has the sync methods of a storage.

    Raises:
        InvalidInputError: A string that cannot be right.
        TypeError: None of these.
    """
    if Storage in type(source).__mro__:  # `isinstance` is true of every object with the methods
        return cast("Storage", source)
    if isinstance(source, str | os.PathLike):
        return storage_from_uri(source)
    return SyncOnlyStorage(source)
