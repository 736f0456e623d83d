"""What is missing, forbidden or unreachable: an error of its own for each, and never an empty answer."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runstore import (
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsError,
    NotFoundError,
    RunStoreError,
    S3Storage,
    TrainingRunStore,
    UnavailableError,
    storage_from_uri,
)
from runstore.remote import _s3_client
from tests.s3.place import Place, forget_pending
from tests.s3.proxy import FaultProxy, Status
from tests.s3.server import S3Server

Operation = Callable[[S3Storage], Any]


def appended(storage: S3Storage) -> None:
    storage.append("folder/appended", b"1\n")
    storage.flush()


def config(storage: S3Storage) -> object:
    return TrainingRunStore(storage, "folder").read_config()


def iterations(storage: S3Storage) -> object:
    return TrainingRunStore(storage, "folder").list_iterations()


READS: dict[str, Operation] = {
    "read": lambda storage: storage.read("folder/there"),
    "read_range": lambda storage: storage.read_range("folder/there", 1, 2),
    "empty range": lambda storage: storage.read_range("folder/there", 0, 0),
    "stat": lambda storage: storage.stat("folder/there"),
    "exists": lambda storage: storage.exists("folder/there"),
    "config": config,
}
LISTS: dict[str, Operation] = {
    "list_dir": lambda storage: storage.list_dir("folder"),
    "scan": lambda storage: storage.scan("folder"),
    "find": lambda storage: storage.find("folder"),
    "iterations": iterations,
}
WRITES: dict[str, Operation] = {
    "write": lambda storage: storage.write("folder/there", b"1"),
    "append": appended,
    "remove": lambda storage: storage.remove("folder/there"),
}
EVERYTHING = READS | LISTS | WRITES


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, proxy: FaultProxy, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, proxy.endpoint, spool_folder)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    forget_pending()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here gets better by waiting."""
    monkeypatch.setattr(_s3_client, "BUDGET_SECONDS", 0.3)
    monkeypatch.setattr(_s3_client, "FIRST_BUDGET_SECONDS", 0.3)


def failures(storage: S3Storage, operations: dict[str, Operation]) -> dict[str, RunStoreError]:
    """The error of each operation; one that succeeds fails the test."""
    found = {}
    for name, operation in operations.items():
        with pytest.raises(RunStoreError) as caught:
            operation(storage)
        found[name] = caught.value
    return found


def check(place: Place, errors: dict[str, RunStoreError], kind: type[RunStoreError], *said: str) -> None:
    """Each is of its kind, and names bucket and key, the endpoint, and the cause, which is kept."""
    for error in errors.values():
        assert type(error) is kind
        assert f"{place.uri}/folder" in str(error)
        for text in (place.endpoint, *said):
            assert text in str(error)
        assert error.__cause__ is not None
        assert isinstance(error, OSError)
        assert str(error.filename).startswith(f"{place.uri}/folder")


def test_d05_a_missing_key_is_missing(place: Place) -> None:
    """Nothing is there: reading says so, naming the file, and asking for it gives an empty answer."""
    storage = place.storage()
    for name in ("read", "read_range", "empty range"):
        with pytest.raises(NotFoundError) as caught:
            READS[name](storage)
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.filename == f"{place.uri}/folder/there"
    assert storage.stat("folder/there") is None
    assert not storage.exists("folder/there")
    assert [storage.list_dir("folder"), storage.find("folder"), config(storage)] == [[], {}, None]
    storage.remove("folder/there")


def test_d05_d06_a_missing_bucket_is_an_error_everywhere(place: Place, proxy: FaultProxy) -> None:
    """A typo in its name is never an empty list nor a missing file, and no bucket is made for it."""
    buckets = place.server.buckets()
    wrong = dataclasses.replace(place, server=dataclasses.replace(place.server, bucket="typo"))
    errors = failures(wrong.storage(), EVERYTHING)
    check(wrong, errors, BucketNotFoundError, "does not exist", "NoSuchBucket", "'s3://typo/")
    assert not any(isinstance(error, FileNotFoundError) for error in errors.values())
    assert place.server.buckets() == buckets
    assert proxy.count("CreateBucket") == 0


@pytest.mark.parametrize(
    ("identity", "code"), [("wrong_secret", "SignatureDoesNotMatch"), ("unknown", "InvalidAccessKeyId")]
)
def test_d05_credentials_that_are_wrong(place: Place, identity: str, code: str) -> None:
    """A wrong secret and a key that nobody knows are told by what the server says."""
    place.put(b"1", "folder/there")
    errors = failures(place.storage(identity), EVERYTHING)
    check(place, errors, CredentialsError, "renew or correct them", code)
    assert all(isinstance(error, PermissionError) for error in errors.values())
    assert place.data("folder/there") == b"1"


@pytest.mark.parametrize("status", [400, 403])
def test_d05_a_token_that_has_expired(place: Place, proxy: FaultProxy, status: int) -> None:
    """Credentials are to be renewed, which is no matter of rights."""
    proxy.fail(Status(status, "ExpiredToken", "The provided token has expired."))
    errors = failures(place.storage(), EVERYTHING)
    check(place, errors, CredentialsError, "renew", "ExpiredToken", "The provided token has expired.")


def test_d05_no_credentials_at_all(place: Place) -> None:
    """Where none are found, the error says what to set; nothing is sent."""
    options = {name: value for name, value in place.options().items() if name not in {"key", "secret"}}
    errors = failures(storage_of(place, options), EVERYTHING)
    for error in errors.values():
        assert type(error) is CredentialsError
        assert f"{place.uri}/folder" in str(error)
        for hint in ("AWS_ACCESS_KEY_ID", "anon=True", "profile"):
            assert hint in str(error)


def storage_of(place: Place, options: dict[str, Any]) -> S3Storage:
    storage = storage_from_uri(place.uri, flush_interval=3600, **options)
    assert isinstance(storage, S3Storage)
    return storage


def test_d05_without_the_right_to_list(place: Place) -> None:
    """Listing is refused as such; reading, asking and writing go on."""
    place.put(b"123", "folder/there")
    storage = place.storage("nolist")
    errors = failures(storage, LISTS)
    check(place, errors, AccessDeniedError, "ask for the right", "AccessDenied", "ListObjectsV2")
    assert storage.read("folder/there") == b"123"
    assert storage.stat("folder/there") is not None
    appended(storage)
    assert place.data("folder/appended") == b"1\n"


def test_d05_where_403_stands_for_missing(place: Place, proxy: FaultProxy) -> None:
    """AWS tells who may not list that a missing file is forbidden: that is an error, not an answer."""
    proxy.fail(Status(403, "AccessDenied", "Access Denied"))
    errors = failures(place.storage(), READS)
    check(place, errors, AccessDeniedError, "AccessDenied")


def test_d05_without_the_right_to_write(place: Place) -> None:
    """Each way of writing is refused, and nothing is changed; reading goes on."""
    place.put(b"123", "folder/there")
    storage = place.storage("readonly")
    errors = failures(storage, WRITES)
    check(place, errors, AccessDeniedError, "ask for the right", "AccessDenied")
    assert storage.read("folder/there") == b"123"
    assert place.data("folder/appended") is None
    assert len(place.spooled()) == 1


def test_d05_a_closed_port(place: Place, proxy: FaultProxy) -> None:
    """Nobody answers: an error that says where, from each operation."""
    proxy.stop()
    errors = failures(place.storage(), EVERYTHING)
    check(place, errors, UnavailableError, "No answer from", "check the endpoint")
    assert all(isinstance(error, ConnectionError) for error in errors.values())


def test_d05_a_host_that_does_not_exist(place: Place) -> None:
    """A mistyped name is told like a closed port, with what the resolver says."""
    wrong = dataclasses.replace(place, endpoint="http://no-such-host.invalid:9000")
    errors = failures(wrong.storage(), {"stat": READS["stat"], "list_dir": LISTS["list_dir"]})
    check(wrong, errors, UnavailableError, "No answer from")


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["bucket", "secret", "port"])
async def test_d05_awaited_they_are_the_same(place: Place, proxy: FaultProxy, what: str) -> None:
    """The async twins raise what the sync ones do."""
    kind: type[RunStoreError]
    if what == "bucket":
        server = dataclasses.replace(place.server, bucket="typo")
        storage, kind = dataclasses.replace(place, server=server).storage(), BucketNotFoundError
    elif what == "secret":
        storage, kind = place.storage("wrong_secret"), CredentialsError
    else:
        proxy.stop()
        storage, kind = place.storage(), UnavailableError
    with pytest.raises(kind):
        await storage.aread("folder/there")
    with pytest.raises(kind):
        await storage.astat("folder/there")
    with pytest.raises(kind):
        await storage.alist_dir("folder")
    with pytest.raises(kind):
        await storage.awrite("folder/there", b"1")
    await storage.aappend("folder/there", b"1")
    with pytest.raises(kind):
        await storage.aflush()
