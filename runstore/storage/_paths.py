"""Paths inside a storage: relative, '/'-separated strings that cannot leave its root."""

from __future__ import annotations

import functools
import os
import posixpath
import re

from runstore.errors import InvalidInputError

__all__ = ["as_bytes", "check_file", "check_name", "check_path", "check_range", "refuse_uri", "storage_join"]

# Of the schemes in use, those that a path may have lost a slash of.
_URI = re.compile(r"\s*(s3a?|gc?s|az|abfss?|adl|memory|https?|hdfs|file):/", re.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def storage_join(*parts: str) -> str:
    """Join path parts with '/', the way every path of a storage is built.

    Slashes around each part are stripped, empty parts dropped, `.` and `..` normalised away.

    Args:
        *parts: Path parts; each may hold slashes of its own.

    Returns:
        The joined path, `""` when nothing is left of it.
    """
    joined = "/".join(stripped for part in parts if (stripped := part.strip("/")))
    return _normalise(joined)


def _normalise(path: str) -> str:
    normal = posixpath.normpath(path) if path else ""
    return "" if normal == "." else normal


@functools.lru_cache(maxsize=4096)
def check_path(path: str) -> str:
    """The path in normal form.

    The check is lexical and touches no disk, so symbolic links are followed.

    Raises:
        InvalidInputError: The path is absolute, holds NUL, or leaves the root through `..`.
    """
    path = os.fspath(path)
    if "\0" in path:
        msg = f"path {path!r} escapes the storage root: it holds a NUL character"
        raise InvalidInputError(msg)
    if path.startswith("/"):
        msg = f"path {path!r} escapes the storage root: paths are relative to it; drop the leading '/'"
        raise InvalidInputError(msg)
    normal = _normalise(path)
    if normal == ".." or normal.startswith("../"):
        msg = f"path {path!r} escapes the storage root through '..'"
        raise InvalidInputError(msg)
    try:
        os.fsencode(normal)
    except UnicodeEncodeError as error:
        msg = f"path {path!r} cannot be the name of a file: {error.reason}"
        raise InvalidInputError(msg) from error
    return normal


@functools.lru_cache(maxsize=4096)
def check_file(path: str) -> str:
    """The path of a file to be written, in normal form.

    Raises:
        InvalidInputError: It leaves the root, or names the root itself.
    """
    checked = check_path(path)
    if not checked:
        msg = f"path {path!r} names the storage root, where a file is needed"
        raise InvalidInputError(msg)
    return checked


def check_range(path: str, offset: int, length: int | None) -> None:
    """Refuse a negative offset or length.

    Raises:
        InvalidInputError: One of them is negative.
    """
    if offset < 0 or (length is not None and length < 0):
        msg = f"range of {path!r} must not be negative: offset={offset}, length={length}"
        raise InvalidInputError(msg)


def as_bytes(path: str, data: object) -> bytes:
    """The data to be written, before anything else is done with it.

    Raises:
        TypeError: It is not bytes or the like.
    """
    if type(data) is bytes:
        return data
    try:
        return bytes(memoryview(data))  # type: ignore[arg-type]  # that is what is found out
    except TypeError as error:
        msg = f"data for {path!r} must be bytes, not {type(data).__qualname__}"
        raise TypeError(msg) from error


def check_name(what: str, name: str) -> str:
    """A name that becomes part of one file name, as it is.

    Raises:
        InvalidInputError: It is empty, or would name a file in another folder.
    """
    if not name or "/" in name or "\0" in name:
        msg = f"{what} {name!r} must be a non-empty name without '/' and NUL: it is part of a file name"
        raise InvalidInputError(msg)
    return name


def refuse_uri(folder: str) -> None:
    """Refuse a URI where the path of a local folder is needed, so that no folder `s3:` comes into being.

    Raises:
        InvalidInputError: It is one, whole or short of a slash.
    """
    if _URI.match(folder):
        msg = (
            f"{folder!r} looks like a URI, not like a local folder: pass URIs to storage_from_uri, as "
            f"strings (pathlib.Path drops a slash), and a folder of that name as './{folder}'"
        )
        raise InvalidInputError(msg)
