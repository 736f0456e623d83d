"""From what a user names (a filesystem, a protocol) to the files of a remote storage."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from runstore.errors import InvalidInputError, MissingDependencyError
from runstore.remote._files import RemoteFiles
from runstore.remote._fsspec_files import OBJECT_STORES, FsspecFiles
from runstore.remote._s3_files import S3Files, split_bucket
from runstore.storage._paths import check_path

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
# Where the package is not called what its module is.
_PACKAGES = {"libarchive": "libarchive-c", "smbclient": "smbprotocol"}


class Source(NamedTuple):
    """A filesystem by its class, or by its protocol where no instance was handed over."""

    protocol: str
    kind: type | None = None
    options: Mapping[str, Any] = {}
    instance: Any = None
    """The instance, of a filesystem that is not asynchronous: it may hold the files itself."""
    strip: Callable[[str], str] | None = None
    """How this instance reads paths, where its class does so otherwise."""
    folder: str = ""
    """The folder of the filesystem that paths are relative to."""

    @classmethod
    def of(cls, fs: object) -> Self:
        """The source that an argument means.

        Raises:
            InvalidInputError: It is none.
        """
        if isinstance(fs, str):
            return cls(_protocol(fs))
        names = {kind.__name__ for kind in type(fs).__mro__}
        if "AbstractFileSystem" not in names:
            what = fs.__name__ if isinstance(fs, type) else f"an object of type {type(fs).__name__}"
            msg = f"{what} is no filesystem: pass an instance of one of fsspec, or its protocol, such as 's3'"
            raise InvalidInputError(msg)
        return cls._of_instance(fs)

    @classmethod
    def _of_instance(cls, fs: Any) -> Self:
        if "DirFileSystem" in {kind.__name__ for kind in type(fs).__mro__}:
            inner = cls._of_instance(fs.fs)
            return inner._replace(folder=f"{inner.folder}/{fs.path}" if inner.folder else fs.path)
        name = _protocols(fs)[0]
        given = _arguments(fs)
        options = {name: value for name, value in given.items() if name not in _INSTANCE_OPTIONS}
        instance = None if fs.async_impl else fs
        return cls(name, type(fs), options, instance, vars(fs).get("_strip_protocol"))


def _protocol(name: str) -> str:
    if ":" in name or "/" in name:
        msg = "a protocol is a name such as 's3'; pass URIs to storage_from_uri"
        raise InvalidInputError(msg)
    return name.lower()


def _arguments(fs: Any) -> dict[str, Any]:
    """What a filesystem was made with, by name."""
    # Of the class itself, fsspec's metaclass hides what it takes.
    taken = inspect.signature(type(fs).__init__).bind_partial(None, *fs.storage_args, **fs.storage_options)
    given = dict(list(taken.arguments.items())[1:])
    for parameter in taken.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            given.pop(parameter.name, None)
    return given


def open_files(source: Source, root: str, given: Mapping[str, Any]) -> tuple[RemoteFiles, str]:
    """The files of a source, and the key of the folder that `root` names.

    Args:
        source: The filesystem.
        root: A path of it, or a URI.
        given: Options of the filesystem beside those of the source.

    Raises:
        InvalidInputError: No filesystem has this protocol or takes these options, or the root is wrong.
        MissingDependencyError: A package is missing that the protocol needs.
    """
    options = {**source.options, **given}
    if source.protocol in _S3:
        bucket, folder = split_bucket(_below(source.folder, _path_of(root, _S3)))
        return _s3_files(bucket, folder, options), folder
    kind: Any = source.kind or _class_of(source.protocol)
    if _scheme_of(root):
        root = f"{source.protocol}://{_path_of(root, {source.protocol, *_protocols(kind)})}"
        options = kind._get_kwargs_from_urls(root) | options  # noqa: SLF001  fsspec's way
    instance = None if given else source.instance
    if instance is None:
        _check_options(source.protocol, kind, options)
    strip = source.strip or kind._strip_protocol  # noqa: SLF001  fsspec's way
    folder = strip(_below(source.folder, root)).rstrip("/")
    if source.protocol in OBJECT_STORES and not folder:
        msg = f"'{source.protocol}://' needs a bucket: {source.protocol}://bucket/prefix"
        raise InvalidInputError(msg)
    _check_folder(folder)
    return FsspecFiles(source.protocol, kind, options, instance), folder


def _s3_files(bucket: str, folder: str, options: Mapping[str, Any]) -> S3Files:
    if "@" in bucket:
        msg = "credentials do not belong in a URI: pass key and secret, or name a profile"
        raise InvalidInputError(msg)
    _check_folder(f"{bucket}/{folder}")
    return S3Files(bucket, options)


def _protocols(kind: Any) -> tuple[str, ...]:
    return (kind.protocol,) if isinstance(kind.protocol, str) else tuple(kind.protocol)


def _scheme_of(root: str) -> str:
    head, separator, _ = root.partition("://")
    return head.lower() if separator and "/" not in head else ""


def _path_of(root: str, protocols: Iterable[str]) -> str:
    """A root without its scheme, if it has one."""
    scheme = _scheme_of(root)
    if scheme and scheme not in protocols:
        known = ", ".join(sorted(protocols))
        msg = f"the root is a URI of '{scheme}://', which is not of this filesystem: {known}"
        raise InvalidInputError(msg)
    return root[len(scheme) + 3 :] if scheme else root


def _below(folder: str, root: str) -> str:
    return f"{folder}/{root.lstrip('/')}".rstrip("/") if folder else root


def _check_folder(folder: str) -> None:
    """Refuse what is no folder of a storage anywhere; keys are taken as they are."""
    check_path(folder.lstrip("/"))
    if {".", ".."} & set(folder.split("/")):
        msg = f"{folder!r} cannot be the folder of a storage: '.' and '..' are not resolved in it"
        raise InvalidInputError(msg)
    try:
        folder.encode()
    except UnicodeEncodeError as error:
        msg = f"{folder!r} cannot be the folder of a storage: {error.reason}"
        raise InvalidInputError(msg) from error


def _check_options(protocol: str, kind: type, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(kind.__init__).bind(None, **options)  # type: ignore[misc]  # it is only looked at
    except TypeError as error:
        msg = f"'{protocol}://' cannot be opened with these options: {error}"
        raise InvalidInputError(msg) from error


def _class_of(protocol: str) -> type:
    import fsspec  # noqa: PLC0415  `import runstore` stays light

    try:
        kind: type = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        msg = (
            f"'{protocol}://' needs a package that is not installed: pip install {_package(protocol, error)}"
        )
        raise MissingDependencyError(msg) from error
    except ValueError as error:
        msg = (
            f"no storage for the scheme '{protocol}://': use a path, file://, s3://, or another scheme that "
            "fsspec knows, such as gs://, az:// or memory://"
        )
        raise InvalidInputError(msg) from error
    return kind


def _package(protocol: str, error: ImportError) -> str:
    """What is to be installed for a protocol: the package of its class, or what fsspec's own class needs."""
    from fsspec.registry import known_implementations  # noqa: PLC0415  `import runstore` stays light

    module: str = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
    if module in {"", "fsspec"}:
        missing = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        module = (missing.name or protocol).partition(".")[0]
    return _PACKAGES.get(module, module)
