"""The error tree: what a handler can rely on."""

import errno
import pickle
import socket
import warnings
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

import runstore
from runstore import LocalStorage, RunStoreError, errors
from runstore.remote._errors import Target, is_conflict, remote_error, retry_after, warn
from runstore.storage._errors import storage_error, write_error

# Each leaf and the builtin that code without this package would catch.
TREE: dict[str, tuple[type[BaseException], ...]] = {
    "AccessDeniedError": (PermissionError, OSError),
    "BucketNotFoundError": (OSError,),
    "CredentialsError": (PermissionError, OSError),
    "EventLoopError": (RuntimeError,),
    "InvalidInputError": (ValueError,),
    "MalformedFileError": (ValueError,),
    "MissingDependencyError": (ImportError,),
    "NotFoundError": (FileNotFoundError, OSError),
    "StorageFullError": (OSError,),
    "StorageIOError": (OSError,),
    "UnavailableError": (ConnectionError, OSError),
    "UnstorableValueError": (TypeError, ValueError),
}
WARNINGS = ["BucketWarning", "SpoolKeptWarning", "UploadDelayedWarning"]


def test_the_tree_is_pinned() -> None:
    """There are these errors and no others, each directly below the root and below its builtins."""
    assert sorted(errors.__all__) == sorted([*TREE, "RunStoreError", *WARNINGS, "RunStoreWarning"])
    assert RunStoreError.__bases__ == (Exception,)
    for name, builtins in TREE.items():
        leaf = getattr(errors, name)
        assert leaf.__bases__[0] is RunStoreError
        assert all(issubclass(leaf, builtin) for builtin in builtins)
        assert leaf.__doc__
        assert getattr(runstore, name) is leaf
    wide = [name for name in TREE if issubclass(getattr(errors, name), PermissionError | FileNotFoundError)]
    assert wide == ["AccessDeniedError", "CredentialsError", "NotFoundError"]
    assert not issubclass(errors.BucketNotFoundError, FileNotFoundError)  # a missing bucket is not "missing"


def test_the_warnings_are_pinned() -> None:
    """There are these warnings and no others, each directly below the root, which a filter may name."""
    assert errors.RunStoreWarning.__bases__ == (UserWarning,)
    for name in WARNINGS:
        leaf = getattr(errors, name)
        assert leaf.__bases__ == (errors.RunStoreWarning,)
        assert leaf.__doc__
        assert getattr(runstore, name) is leaf


@pytest.mark.parametrize("name", [*TREE, "RunStoreError"])
def test_an_error_survives_pickling(name: str) -> None:
    """Its class, message and, where it has them, error number and path arrive in another process."""
    leaf = getattr(errors, name)
    system = issubclass(leaf, OSError)
    error = leaf(errno.EIO, "what happened", "/some/path") if system else leaf("what happened at /some/path")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is leaf
    assert str(again) == str(error)
    assert "what happened" in str(again)
    assert "/some/path" in str(again)
    if system:
        assert (again.errno, again.strerror, again.filename) == (errno.EIO, "what happened", "/some/path")


@pytest.mark.parametrize(
    ("code", "read", "write"),
    [
        (errno.ENOENT, "NotFoundError", "NotFoundError"),
        (errno.ENOTDIR, "NotFoundError", "StorageIOError"),
        (errno.EISDIR, "NotFoundError", "StorageIOError"),
        (errno.EEXIST, "StorageIOError", "StorageIOError"),
        (errno.EACCES, "AccessDeniedError", "AccessDeniedError"),
        (errno.EPERM, "AccessDeniedError", "AccessDeniedError"),
        (errno.EROFS, "AccessDeniedError", "AccessDeniedError"),
        (errno.ENOSPC, "StorageFullError", "StorageFullError"),
        (errno.EDQUOT, "StorageFullError", "StorageFullError"),
        (errno.EFBIG, "StorageFullError", "StorageFullError"),
        (errno.EIO, "StorageIOError", "StorageIOError"),
        (errno.ESTALE, "StorageIOError", "StorageIOError"),
        (errno.EMFILE, "StorageIOError", "StorageIOError"),
    ],
)
def test_the_table_of_errors(code: int, read: str, write: str) -> None:
    """Each error of the system becomes one leaf with its number and path, when reading and when writing."""
    for translate, expected in ((storage_error, read), (write_error, write)):
        error = translate(OSError(code, "reason"), "/some/path")
        assert type(error).__name__ == expected
        assert isinstance(error, OSError)
        assert error.errno == code
        assert error.filename == "/some/path"


def test_an_error_without_a_number_is_told_by_its_class() -> None:
    """Objects of other makes raise `FileNotFoundError("text")`; it is missing all the same."""
    assert isinstance(storage_error(FileNotFoundError("no such key"), "f"), errors.NotFoundError)
    assert isinstance(storage_error(PermissionError("no"), "f"), errors.AccessDeniedError)
    other = storage_error(OSError("connection lost"), "f")
    assert isinstance(other, errors.StorageIOError)
    assert "connection lost" in str(other)


def answer(code: str, status: int, message: str = "said so", **headers: str) -> ClientError:
    """What botocore raises for an answer of the server."""
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return ClientError(response, "PutObject")


TARGET = Target("s3://bucket/run/metrics.jsonl", "http://127.0.0.1:9000", frozenset({"hunter2"}))


@pytest.mark.parametrize(
    ("code", "status", "expected", "number"),
    [
        ("NoSuchBucket", 404, "BucketNotFoundError", errno.ENXIO),
        ("NoSuchKey", 404, "NotFoundError", errno.ENOENT),
        ("NotFound", 404, "NotFoundError", errno.ENOENT),
        ("InvalidAccessKeyId", 403, "CredentialsError", errno.EACCES),
        ("SignatureDoesNotMatch", 403, "CredentialsError", errno.EACCES),
        ("ExpiredToken", 400, "CredentialsError", errno.EACCES),
        ("InvalidToken", 400, "CredentialsError", errno.EACCES),
        ("TokenRefreshRequired", 400, "CredentialsError", errno.EACCES),
        ("RequestTimeTooSkewed", 403, "CredentialsError", errno.EACCES),
        ("AccessDenied", 403, "AccessDeniedError", errno.EACCES),
        ("403", 403, "AccessDeniedError", errno.EACCES),
        ("AllAccessDisabled", 403, "AccessDeniedError", errno.EACCES),
        ("MethodNotAllowed", 405, "AccessDeniedError", errno.EACCES),
        ("SlowDown", 503, "UnavailableError", errno.EBUSY),
        ("TooManyRequests", 429, "UnavailableError", errno.EBUSY),
        ("anything", 429, "UnavailableError", errno.EBUSY),
        ("RequestTimeout", 400, "UnavailableError", errno.EBUSY),
        ("InternalError", 500, "UnavailableError", errno.EBUSY),
        ("ServiceUnavailable", 503, "UnavailableError", errno.EBUSY),
        ("502", 502, "UnavailableError", errno.EBUSY),
        ("BadDigest", 400, "UnavailableError", errno.EBUSY),
        ("QuotaExceeded", 403, "StorageFullError", errno.ENOSPC),
        ("XMinioStorageFull", 507, "StorageFullError", errno.ENOSPC),
        ("507", 507, "StorageFullError", errno.ENOSPC),
        ("PermanentRedirect", 301, "StorageIOError", errno.EIO),
        ("AuthorizationHeaderMalformed", 400, "StorageIOError", errno.EIO),
        ("PreconditionFailed", 412, "StorageIOError", errno.EIO),
        ("InvalidRange", 416, "StorageIOError", errno.EIO),
        ("InvalidBucketName", 400, "InvalidInputError", None),
        ("NeverHeardOf", 418, "StorageIOError", errno.EIO),
    ],
)
def test_the_table_of_a_servers_answers(code: str, status: int, expected: str, number: int | None) -> None:
    """Each answer becomes one leaf, which names the object and, but for a missing one, endpoint and cause."""
    error = remote_error(answer(code, status), TARGET, "PutObject")
    assert type(error).__name__ == expected
    assert TARGET.url in str(error)
    if expected != "NotFoundError":
        for part in (code, "said so", "PutObject", str(status), TARGET.endpoint):
            assert part in str(error)
    if number is not None:
        assert isinstance(error, OSError)
        assert (error.errno, error.filename) == (number, TARGET.url)


def test_a_404_without_a_code_is_missing_only_in_the_answer_to_a_head() -> None:
    """That has no body to say so in; to anything else it is the answer of what is no S3 server."""
    assert isinstance(remote_error(answer("404", 404), TARGET, "HeadObject"), errors.NotFoundError)
    for doing in ("GetObject", "PutObject"):
        error = remote_error(answer("404", 404), TARGET, doing)
        assert type(error) is errors.StorageIOError
        assert "check the endpoint" in str(error)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (NoCredentialsError(), "CredentialsError"),
        (PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), "CredentialsError"),
        (ProfileNotFound(profile="gone"), "CredentialsError"),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:9000"), "UnavailableError"),
        (ConnectTimeoutError(endpoint_url="http://127.0.0.1:9000"), "UnavailableError"),
        (ReadTimeoutError(endpoint_url="http://127.0.0.1:9000"), "UnavailableError"),
        (ConnectionClosedError(endpoint_url="http://127.0.0.1:9000"), "UnavailableError"),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), "UnavailableError"),
        (ResponseParserError("no XML"), "UnavailableError"),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), "UnavailableError"),
        (TimeoutError(), "UnavailableError"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "UnavailableError"),
        (aiohttp.ClientPayloadError("Response payload is not completed"), "UnavailableError"),
        (aiohttp.ServerDisconnectedError(), "UnavailableError"),
        (ParamValidationError(report="Invalid bucket name"), "InvalidInputError"),
        (ValueError("Invalid endpoint: x"), "InvalidInputError"),
        (ModuleNotFoundError("No module named 's3fs'"), "MissingDependencyError"),
        (PermissionError(errno.EACCES, "denied"), "AccessDeniedError"),
        (FileNotFoundError("bucket/run"), "NotFoundError"),
        (OSError(errno.ENOSPC, "No space left on device"), "StorageFullError"),
        (RuntimeError("what nobody expects"), "StorageIOError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_the_table_of_what_libraries_raise(raised: Exception, expected: str) -> None:
    """What comes of no answer becomes one leaf too, which names the object."""
    error = remote_error(raised, TARGET, "PutObject")
    assert type(error).__name__ == expected
    assert TARGET.url in str(error)


def test_an_error_of_this_package_is_left_as_it_is() -> None:
    """Translating twice changes nothing."""
    error = remote_error(answer("SlowDown", 503), TARGET)
    assert remote_error(error, TARGET._replace(url="s3://other")) is error


def test_d13_no_secret_is_in_a_translated_error() -> None:
    """Where a server or a library repeats a credential, it is blotted out."""
    for raised in (
        answer("InvalidAccessKeyId", 403, "no such key: hunter2"),
        RuntimeError("hunter2 is wrong"),
    ):
        error = remote_error(raised, TARGET)
        assert "hunter2" not in str(error)
        assert "***" in str(error)


def test_a_conflict_is_told_from_other_refusals() -> None:
    """A conditional request that lost, in each way that servers say it."""

    def raised(code: str, status: int) -> RunStoreError:
        error = remote_error(answer(code, status), TARGET)
        error.__cause__ = answer(code, status)
        return error

    lost = [("PreconditionFailed", 412), ("412", 412), ("ConditionalRequestConflict", 409), ("409", 409)]
    assert all(is_conflict(raised(*each)) for each in lost)
    assert not any(is_conflict(raised(*each)) for each in (("SlowDown", 503), ("AccessDenied", 403)))
    assert not is_conflict(remote_error(TimeoutError(), TARGET))


def test_the_pause_that_a_server_asks_for_is_heeded() -> None:
    """`Retry-After` in seconds counts, anything else does not."""
    for header, seconds in (("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)):
        error = errors.UnavailableError(errno.EBUSY, "busy", TARGET.url)
        error.__cause__ = answer("SlowDown", 503, **{"retry-after": header})
        assert retry_after(error) == seconds
    assert retry_after(errors.UnavailableError(errno.EBUSY, "busy", TARGET.url)) == 0.0


def test_a_warning_never_stops_what_gives_it(caplog: pytest.LogCaptureFixture) -> None:
    """Where warnings are errors it is logged instead: nobody could catch it in a background task."""
    with pytest.warns(errors.BucketWarning, match="a bucket with versions"):
        warn("a bucket with versions", errors.BucketWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("a bucket with versions", errors.BucketWarning)
    assert "BucketWarning: a bucket with versions" in caplog.text


@pytest.mark.anyio
async def test_the_cause_is_kept_in_both_colours(tmp_path: Path) -> None:
    """What the system said is the cause, awaited or not."""
    storage = LocalStorage(tmp_path, mkdir=False)
    with pytest.raises(errors.NotFoundError) as called:
        storage.read("f")
    with pytest.raises(errors.NotFoundError) as awaited:
        await storage.aread("f")
    for caught in (called, awaited):
        assert type(caught.value.__cause__) is FileNotFoundError
        assert caught.value.filename == str(tmp_path / "f")
        assert caught.value.errno == errno.ENOENT
