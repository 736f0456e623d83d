"""From what a user names (a filesystem, a protocol) to the files of a remote storage."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from runstore.errors import InvalidInputError, MissingDependencyError
from runstore.remote._files import RemoteFiles
from runstore.remote._fsspec_files import FsspecFiles
from runstore.remote._s3_files import S3Files, split_bucket

__all__ = ["Source", "open_files"]

_S3 = {"s3", "s3a"}
# What belongs to the instance that was handed over, not to the one made from its options.
_INSTANCE_OPTIONS = {
    "asynchronous",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
}


class Source(NamedTuple):
    """A filesystem by its class, or by its protocol where no instance was handed over."""

    protocol: str
    kind: type | None = None
    options: Mapping[str, Any] = {}
    instance: Any = None
    """The instance, of a filesystem that is not asynchronous: it may hold the files itself."""

    @classmethod
    def of(cls, fs: object) -> Self:
        """The source that an argument means.

        Raises:
            InvalidInputError: It is none.
        """
        if isinstance(fs, str):
            return cls(fs.lower())
        protocol = getattr(fs, "protocol", None)
        if isinstance(fs, type) or protocol is None:
            msg = f"{fs!r} is no filesystem: pass one of fsspec, or its protocol, such as 's3'"
            raise InvalidInputError(msg)
        name = protocol if isinstance(protocol, str) else protocol[0]
        given: dict[str, Any] = dict(getattr(fs, "storage_options", {}))
        args = getattr(fs, "storage_args", ())
        if args:
            given = dict(inspect.signature(type(fs)).bind(*args, **given).arguments)
            given |= given.pop("kwargs", {})
        options = {name: value for name, value in given.items() if name not in _INSTANCE_OPTIONS}
        return cls(name, type(fs), options, None if getattr(fs, "async_impl", False) else fs)


def open_files(source: Source, root: str, given: Mapping[str, Any]) -> tuple[RemoteFiles, str]:
    """The files of a source, and the key of the folder that `root` names.

    Raises:
        InvalidInputError: No filesystem has this protocol, or the root has no bucket.
        MissingDependencyError: A package is missing that the protocol needs.
    """
    options = {**source.options, **given}
    if source.protocol in _S3:
        _, _, path = root.rpartition("://")
        bucket, folder = split_bucket(path)
        return S3Files(bucket, options), folder
    kind = source.kind or _class_of(source.protocol)
    folder = str(kind._strip_protocol(root)).rstrip("/")  # type: ignore[attr-defined]  # noqa: SLF001  fsspec's way
    return FsspecFiles(source.protocol, kind, options, source.instance), folder


def _class_of(protocol: str) -> type:
    import fsspec  # noqa: PLC0415  `import runstore` stays light
    from fsspec.registry import known_implementations  # noqa: PLC0415

    try:
        kind: type = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        path = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
        package = path if path != "fsspec" else error.name
        msg = f"'{protocol}://' needs a package that is not installed: pip install {package}"
        raise MissingDependencyError(msg) from error
    except ValueError as error:
        msg = (
            f"no storage for the scheme '{protocol}://': use a path, file://, s3://, or another scheme that "
            f"fsspec knows, such as gs://, az:// or memory:// ({error})"
        )
        raise InvalidInputError(msg) from error
    return kind
