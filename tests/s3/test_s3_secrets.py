"""Credentials are sent, and shown nowhere."""

import dataclasses
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runstore import (
    IncrementalReader,
    RunRegistry,
    RunStoreError,
    S3Storage,
    TrainingRunStore,
    UploadDelayedWarning,
    storage_from_uri,
)
from runstore.remote import _redaction, _s3_client
from tests.s3.place import Place, forget_pending, until
from tests.s3.proxy import FaultProxy, Status
from tests.s3.server import REGION, S3Server

TOKEN = "session-token-of-nobody-5d1e"


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, proxy: FaultProxy, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, proxy.endpoint, spool_folder)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here gets better by waiting."""
    monkeypatch.setattr(_s3_client, "BUDGET_SECONDS", 0.1)
    monkeypatch.setattr(_s3_client, "FIRST_BUDGET_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    forget_pending()


WAYS = ("options", "token", "client_kwargs", "environment", "environment token", "profile", "endpoint")


@pytest.fixture(params=WAYS)
def given(
    request: pytest.FixtureRequest, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The ways to give credentials; nothing is known yet of those of other tests."""
    monkeypatch.setattr(_redaction._redaction, "secrets", frozenset())
    way: str = request.param
    key, secret = dataclasses.astuple(place.server.credentials["admin"])
    options: dict[str, Any] = {"endpoint_url": place.endpoint, "client_kwargs": {"region_name": REGION}}
    if way in {"options", "token", "endpoint"}:
        options |= {"key": key, "secret": secret}
    if way == "token":
        options |= {"token": TOKEN}
    if way == "endpoint":
        options["endpoint_url"] = place.endpoint.replace("http://", f"http://{key}:{TOKEN}@")
    if way == "client_kwargs":
        options["client_kwargs"] |= {"aws_access_key_id": key, "aws_secret_access_key": secret}
    if way.startswith("environment"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    if way == "environment token":
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    if way == "profile":
        file = tmp_path / "credentials"
        file.write_text(f"[lab]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        options |= {"profile": "lab"}
    return options


def uses(storage: S3Storage) -> list[Callable[[], object]]:
    """What shows a storage, works with it, and fails with it."""
    run = TrainingRunStore(storage)
    missing = storage_from_uri("s3://typo/x", **storage._options)
    return [
        lambda: [repr(storage), str(storage), storage.url(), storage.url("a"), run.url(), repr(run)],
        lambda: [repr(RunRegistry([storage])), repr(IncrementalReader(storage, "f")), storage.identity()],
        lambda: [repr(vars(storage)["_files"]), repr(storage._source)],
        lambda: run.write_metrics({"loss": 1.0}, step=1),
        storage.flush,
        run.read_metrics,
        lambda: run.write_config({"lr": 0.1}),
        run.read_config,
        run.list_iterations,
        lambda: storage.read("missing"),
        lambda: missing.read("missing"),
        lambda: missing.stat("missing"),
        storage.close,
    ]


@pytest.mark.filterwarnings("default")
def test_d13_credentials_are_shown_nowhere(
    place: Place, given: dict[str, Any], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """Neither key nor secret nor token.

    Not in what describes a storage, in errors with their causes, in warnings, in what any logger says at
    DEBUG, nor in the spool.
    """
    caplog.set_level(logging.DEBUG)
    storage = storage_from_uri(place.uri, flush_interval=3600, **given)
    assert isinstance(storage, S3Storage)
    said = []
    for use in uses(storage):
        try:
            said.append(str(use()))
        except RunStoreError as error:
            said += [repr(error), *traceback.format_exception(error)]
    assert {"botocore", "s3fs"} <= {record.name.partition(".")[0] for record in caplog.records}
    said += [str(warning.message) for warning in recwarn] + [caplog.text]
    for secret in (*dataclasses.astuple(place.server.credentials["admin"]), TOKEN):
        for text in said:
            assert secret not in text
        for file in place.spool.rglob("*"):
            assert not file.is_file() or secret.encode() not in file.read_bytes()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("given", ["options", "environment"], indirect=True)
def test_d13_what_a_server_repeats_is_blotted_out(
    place: Place,
    given: dict[str, Any],
    proxy: FaultProxy,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A server may name the credentials that it refuses: our errors, warnings and the logs say `***`."""
    caplog.set_level(logging.DEBUG)
    secrets = dataclasses.astuple(place.server.credentials["admin"])
    proxy.fail(Status(403, "InvalidAccessKeyId", f"Not known: {secrets[0]}, {secrets[1]}."))
    storage = storage_from_uri(place.uri, flush_interval=0.05, **given)
    storage.append("f", b"1")
    until(lambda: len(recwarn) > 0, "nothing was warned of in the background")
    with pytest.raises(RunStoreError, match=r"Not known: \*\*\*, \*\*\*\.") as caught:
        storage.list_dir("")
    proxy.heal()
    storage.flush()
    (warned,) = recwarn
    assert warned.category is UploadDelayedWarning
    for text in (str(caught.value), caplog.text, str(warned.message)):
        assert "Not known: ***, ***." in text
        assert not any(secret in text for secret in secrets)
    assert place.data("f") == b"1"
