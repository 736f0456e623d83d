"""The one table that turns errors of S3 clients and of fsspec filesystems into those of this package."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from runstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsError,
    InvalidInputError,
    MissingDependencyError,
    NotFoundError,
    RunStoreError,
    RunStoreWarning,
    StorageFullError,
    StorageIOError,
    UnavailableError,
)
from runstore.storage._errors import storage_error

__all__ = ["Target", "error_code", "is_conflict", "remote_error", "retry_after", "warn", "without_secrets"]


class Target(NamedTuple):
    """What a request is about, for messages."""

    url: str
    endpoint: str
    secrets: frozenset[str] = frozenset()


_CONFLICT = {"409", "412", "ConditionalRequestConflict", "NoSuchUpload", "PreconditionFailed"}


def _response(error: BaseException | None) -> dict[str, Any]:
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def error_code(error: BaseException | None) -> str:
    """The code that a server's answer gives its error, `""` when it gave no answer."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException | None) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_conflict(error: BaseException) -> bool:
    """Whether a conditional request was refused because the object has changed."""
    cause = error.__cause__
    return error_code(cause) in _CONFLICT or _status(cause) in {409, 412}


def retry_after(error: BaseException) -> float:
    """Seconds that the server asks to wait, 0 when it says nothing."""
    headers = _response(error.__cause__).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return max(float(headers.get("retry-after", 0)), 0.0)
    except ValueError:
        return 0.0


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret blotted out."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def without_userinfo(url: str) -> str:
    """A URL without the user and password that it may hold."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def remote_error(error: BaseException, target: Target, doing: str = "") -> RunStoreError:
    """The error of this package for one of a client's or a filesystem's.

    Args:
        error: What was raised.
        target: The object and its server.
        doing: The operation, by the name that rights are given for.
    """
    if isinstance(error, RunStoreError):
        return error
    if _response(error):
        return _answered(error, target, doing)
    said = f"{type(error).__name__}: {without_secrets(str(error), target.secrets)}"
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _CREDENTIAL_ERRORS:
        hint = "pass key and secret, name a profile, set AWS_ACCESS_KEY_ID, or anon=True for a public bucket"
        return CredentialsError(errno.EACCES, f"No usable credentials ({said}): {hint}", target.url)
    if names & _CONNECTION_ERRORS:
        msg = f"No answer from {target.endpoint} ({said}): check the endpoint and the network"
        return UnavailableError(errno.ECONNREFUSED, msg, target.url)
    return _local_error(error, target, said)


def _local_error(error: BaseException, target: Target, said: str) -> RunStoreError:
    """The error for what never reached a server."""
    if isinstance(error, ImportError):
        return MissingDependencyError(f"{target.url}: {said}")
    if isinstance(error, ValueError) or type(error).__name__ == "ParamValidationError":
        return InvalidInputError(f"{target.url}: {said}")
    if isinstance(error, OSError):
        return storage_error(error, target.url)
    return StorageIOError(errno.EIO, said, target.url)


# By name: the libraries that they come from need not be loaded.
_CREDENTIAL_ERRORS = {
    "CredentialRetrievalError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SSOError",
    "TokenRetrievalError",
}
_CONNECTION_ERRORS = {
    "ClientError",  # aiohttp's; botocore's holds an answer
    "ConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
    "TimeoutError",
    "gaierror",
}


class _Meaning(NamedTuple):
    """What an answer means to whoever asked."""

    codes: frozenset[str]
    statuses: range
    kind: type[RunStoreError]
    number: int
    hint: str


# The first that fits counts.
_MEANINGS = (
    _Meaning(
        frozenset({"NoSuchBucket"}),
        range(0),
        BucketNotFoundError,
        errno.ENXIO,
        "The bucket does not exist, and none is created: check its name and the endpoint",
    ),
    _Meaning(
        frozenset({"404", "NoSuchKey", "NotFound"}),
        range(0),
        NotFoundError,
        errno.ENOENT,
        "There is no file at this path",
    ),
    _Meaning(
        frozenset(
            {
                "AuthorizationQueryParametersError",
                "ExpiredToken",
                "ExpiredTokenException",
                "InvalidAccessKeyId",
                "InvalidClientTokenId",
                "InvalidSecurity",
                "InvalidToken",
                "RequestTimeTooSkewed",
                "SignatureDoesNotMatch",
                "TokenRefreshRequired",
            }
        ),
        range(0),
        CredentialsError,
        errno.EACCES,
        "The server does not take these credentials: renew or correct them",
    ),
    _Meaning(
        frozenset({"QuotaExceeded", "XMinioStorageFull"}),
        range(507, 508),
        StorageFullError,
        errno.ENOSPC,
        "The store is full",
    ),
    _Meaning(
        frozenset(
            {
                "429",
                "BadDigest",
                "IncompleteBody",
                "OperationAborted",
                "RequestTimeout",
                "SlowDown",
                "Throttling",
                "ThrottlingException",
                "TooManyRequests",
                "XAmzContentSHA256Mismatch",
            }
        ),
        range(500, 600),
        UnavailableError,
        errno.EBUSY,
        "The server is busy or failing: try again later",
    ),
    _Meaning(
        frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}),
        range(300, 400),
        StorageIOError,
        errno.EIO,
        "The bucket is in another region or at another endpoint: set region_name or endpoint_url",
    ),
    _Meaning(
        frozenset({"InvalidBucketName"}), range(0), InvalidInputError, errno.EINVAL, "Not a name of a bucket"
    ),
    _Meaning(
        frozenset({"AccountProblem", "AllAccessDisabled", "MethodNotAllowed"}),
        range(403, 404),
        AccessDeniedError,
        errno.EACCES,
        "These credentials may not do this: ask for the right",
    ),
)


def _answered(error: BaseException, target: Target, doing: str) -> RunStoreError:
    """The error for what a server answered."""
    code, status = error_code(error), _status(error)
    message = without_secrets(_response(error).get("Error", {}).get("Message", ""), target.secrets)
    said = f"{code}: {message}" if message else code
    said = f"{said} ({doing or 'request'}, HTTP {status}, {target.endpoint})"
    # The answer to HeadObject alone has no body to say what is missing.
    if code in {"", "404"} and status in range(400, 500) and doing != "HeadObject":
        hint = f"{target.endpoint} answers, but not as an S3 server does: check the endpoint"
        return StorageIOError(errno.EPROTO, f"{hint}. {said}", target.url)
    for meaning in _MEANINGS:
        if code in meaning.codes or status in meaning.statuses or (status == 429 and "429" in meaning.codes):  # noqa: PLR2004
            text = meaning.hint if meaning.kind is NotFoundError else f"{meaning.hint}. {said}"
            if issubclass(meaning.kind, OSError):
                return meaning.kind(meaning.number, text, target.url)
            return meaning.kind(f"{text}: {target.url}")
    return StorageIOError(errno.EIO, said, target.url)


def warn(message: str, category: type[RunStoreWarning]) -> None:
    """Give a warning from a thread of this package; where warnings are errors, log it instead.

    Nobody could catch the error there, and what is warned of must not stop for it.
    """
    try:
        # No frame of the user's is on this stack to point to.
        warnings.warn_explicit(message, category, filename="runstore", lineno=1, module="runstore")
    except RunStoreWarning:
        import logging  # noqa: PLC0415  only this rare case logs

        logging.getLogger("runstore").warning("%s: %s", category.__name__, message)
