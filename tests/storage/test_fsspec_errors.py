"""What goes wrong below fsspec: errors of its clients, connections at the end."""

import asyncio
import threading
import weakref
from collections.abc import Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import sync

from runstore import FsspecStorage, RunStoreError, storage_from_uri
from runstore.remote._errors import Target, remote_error
from runstore.remote._fsspec_errors import understood
from tests.filesystems import AsyncObjects
from tests.scripts import run, write_script

REPOSITORY = str(Path(__file__).parents[2])
BODY = b"0123456789"


class Answers(BaseHTTPRequestHandler):
    """Answers with the status that the path ends in, and a body below `/200`."""

    def do_GET(self) -> None:
        status = int(self.path.rpartition("/")[2])
        self.send_response(status)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(BODY)

    do_HEAD = do_GET  # noqa: N815  the name that the server calls

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    """The URI of a web server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "CredentialsError"),
        (403, "AccessDeniedError"),
        (404, "NotFoundError"),
        (418, "StorageIOError"),
        (429, "UnavailableError"),
        (500, "UnavailableError"),
        (503, "UnavailableError"),
        (507, "StorageFullError"),
    ],
)
def test_a_web_server_is_understood(web: str, status: int, expected: str) -> None:
    """Each status becomes the leaf that S3's would, and names the URL."""
    with storage_from_uri(f"{web}/run") as storage:
        assert storage.read("200") == BODY
        with pytest.raises(RunStoreError) as caught:
            storage.read(str(status))
    assert type(caught.value).__name__ == expected
    assert f"{web}/run/{status}" in str(caught.value)


def test_a_web_server_that_is_not_there(web: str) -> None:
    """No connection is an `UnavailableError`."""
    with storage_from_uri("http://127.0.0.1:1/run") as storage, pytest.raises(ConnectionError):
        storage.read("f")


class AzureCode(StrEnum):
    CONTAINER_NOT_FOUND = "ContainerNotFound"


def named(name: str, said: str = "said so", **attributes: object) -> Exception:
    """An error of a client that is not installed."""
    error: Exception = type(name, (Exception,), attributes)(said)
    return error


def raised_for(error: Exception, cause: Exception) -> Exception:
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (named("HttpResponseError", status_code=403, error_code="AuthenticationFailed"), "CredentialsError"),
        (named("HttpResponseError", status_code=403), "AccessDeniedError"),
        (named("HttpResponseError", status_code=503), "UnavailableError"),
        (named("ResourceNotFoundError", status_code=404, error_code="BlobNotFound"), "NotFoundError"),
        (named("ResourceNotFoundError", error_code=AzureCode.CONTAINER_NOT_FOUND), "BucketNotFoundError"),
        (
            raised_for(FileNotFoundError("c/r"), named("NotFound", error_code="ContainerNotFound")),
            "BucketNotFoundError",
        ),
        (FileNotFoundError("c/r"), "NotFoundError"),
        (named("ClientAuthenticationError"), "CredentialsError"),
        (named("ServiceRequestError"), "UnavailableError"),
        (named("HttpError", code=429), "UnavailableError"),
        (named("HttpError", code="401"), "CredentialsError"),
        (named("RefreshError"), "CredentialsError"),
        (named("DefaultCredentialsError"), "CredentialsError"),
        (named("TransportError"), "UnavailableError"),
        (named("Anything", code="no status", status=7), "StorageIOError"),
    ],
    ids=repr,
)
def test_clients_of_other_stores_are_understood(error: Exception, expected: str) -> None:
    """Azure's and Google's errors become the leaves that S3's would, with the first line of what they say."""
    translated = remote_error(understood(error), Target("abfs://c/r", "'abfs://'"))
    assert type(translated).__name__ == expected
    assert "abfs://c/r" in str(translated)


class Leaving(AsyncObjects):
    """Leaves its connections to fsspec to close at exit, as adlfs does: without its loop that fails."""

    protocol = "leaving"
    closed = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        weakref.finalize(self, sync, self.loop, _close, self)


async def _close(filesystem: Leaving) -> None:
    await filesystem._connected()
    Leaving.closed += 1


def test_connections_are_closed_on_their_loop(tmp_path: Path) -> None:
    """By whoever closes the last storage; the next use opens new ones."""
    fs = Leaving(asynchronous=True)
    before = Leaving.closed
    for times in (1, 2):
        one, two = FsspecStorage(fs, str(tmp_path)), FsspecStorage(fs, str(tmp_path))
        assert not one.exists("f")
        assert not two.exists("f")
        one.close()
        assert Leaving.closed == before + times - 1
        asyncio.run(two.aclose())
        assert Leaving.closed == before + times
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (finalizer.peek() or [None])[0] is fs:
            finalizer.detach()  # this one's own, which would fail


def test_connections_that_nobody_closed_are_closed_at_exit(tmp_path: Path) -> None:
    """A script that ends without close says nothing of it."""
    script = write_script(
        tmp_path,
        f"""
        import atexit, sys
        sys.path.append({REPOSITORY!r})
        from runstore import FsspecStorage
        from tests.storage.test_fsspec_errors import Leaving
        atexit.register(lambda: print("closed", Leaving.closed))
        fs = Leaving(asynchronous=True)
        [finalizer.detach() for finalizer in list(__import__("weakref").finalize._registry)]
        storage = FsspecStorage(fs, "/x")
        storage.exists("f")
        """,
    )
    done = run(script, options=("-X", "dev", "-W", "error"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed 1\n", "")
