"""What the clients below fsspec filesystems raise, in the words of S3, which `_errors` has the table for.

By names and attributes: none of these clients need be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["understood"]

_CODES = {
    "AuthenticationFailed": "InvalidToken",
    "AuthorizationFailure": "InvalidToken",
    "BlobNotFound": "NoSuchKey",
    "ContainerNotFound": "NoSuchBucket",
    "InvalidAuthenticationInfo": "InvalidToken",
    "NoAuthenticationInformation": "InvalidToken",
}
_STATUSES = {401: "InvalidToken", 404: "NoSuchKey"}
_CREDENTIAL_ERRORS = {
    "ClientAuthenticationError",
    "CredentialUnavailableError",
    "DefaultCredentialsError",
    "RefreshError",
}
_CONNECTION_ERRORS = {"ServiceRequestError", "ServiceResponseError", "TransportError"}


class _Answered(Exception):  # noqa: N818  it is never raised
    """An answer of a server, in the form that botocore gives it."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.response = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


def understood(error: BaseException) -> BaseException:
    """An error that `remote_error` knows, for one that a filesystem raised."""
    message = str(error).partition("\n")[0]
    if "NoSuchBucket" in map(_code, _chain(error)):  # filesystems make "not found" of it
        return _Answered("NoSuchBucket", 404, message)
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _CONNECTION_ERRORS:
        return ConnectionError(message)
    status = _status(error)
    if names & _CREDENTIAL_ERRORS:
        return _Answered("InvalidToken", status, message)
    if status and not isinstance(error, OSError):
        return _Answered(_code(error) or _STATUSES.get(status, str(status)), status, message)
    return error


def _code(error: object) -> str:
    code = getattr(error, "error_code", None)  # azure's, sometimes as an enum
    return _CODES.get(getattr(code, "value", code) or "", "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Any) -> int:
    """The HTTP status that an error tells of: azure's, gcsfs's and aiohttp's call it otherwise."""
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if str(value).isdigit() and 400 <= int(str(value)) < 600:  # noqa: PLR2004  errors of HTTP
            return int(str(value))
    return 0
