"""The S3 server of the tests: who may do what, what it answers, and that nothing of it is left behind."""

import fcntl
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psutil
import pytest
from botocore.exceptions import ClientError

from tests.s3.conftest import SETTING, _weed
from tests.s3.server import PUBLIC, S3Server, _supervised, find_weed, free_ports, shared_server


def outcome(call: Callable[[], Any]) -> str:
    """The code of an answer: `ok`, or the error's."""
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "ok"


class Attempts:
    """What somebody may try on an S3 server, inside a prefix and outside of it."""

    def __init__(self, server: S3Server, identity: str, inside: str) -> None:
        self.server, self.client = server, server.client(identity)
        self.bucket = {"Bucket": server.bucket}
        self.inside, self.outside = f"{inside}/{identity}/", f"private/{uuid4().hex}/"
        self.public = f"{PUBLIC}{uuid4().hex}/"
        for prefix in (self.inside, self.outside, self.public):
            server.put(f"{prefix}there", b"x")

    def get(self, prefix: str) -> Any:
        self.client.head_object(**self.bucket, Key=f"{prefix}there")
        return self.client.get_object(**self.bucket, Key=f"{prefix}there")["Body"].read()

    def list(self, prefix: str) -> Any:
        return self.client.list_objects_v2(**self.bucket, Prefix=prefix)

    def put(self, prefix: str) -> Any:
        return self.client.put_object(**self.bucket, Key=f"{prefix}new", Body=b"x")

    def multipart(self, prefix: str) -> Any:
        here = {**self.bucket, "Key": f"{prefix}big"}
        upload = {**here, "UploadId": self.client.create_multipart_upload(**here)["UploadId"]}
        self.client.upload_part(**upload, PartNumber=1, Body=b"x")
        source = {**self.bucket, "Key": f"{prefix}there"}
        copied = self.client.upload_part_copy(**upload, PartNumber=1, CopySource=source)
        parts = {"Parts": [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]}
        return self.client.complete_multipart_upload(**upload, MultipartUpload=parts)

    def abort(self, prefix: str) -> Any:
        here = {**self.bucket, "Key": f"{prefix}big"}
        upload = self.server.client().create_multipart_upload(**here)["UploadId"]
        return self.client.abort_multipart_upload(**here, UploadId=upload)

    def delete(self, prefix: str) -> Any:
        return self.client.delete_object(**self.bucket, Key=f"{prefix}there")

    def outcomes(self) -> Iterator[tuple[str, str]]:
        """Try everything, deleting last."""
        places = {"inside": self.inside, "outside": self.outside, "public": self.public}
        tries = (self.get, self.list, self.put, self.multipart, self.abort, self.delete)
        for attempt in tries:
            for name, prefix in places.items():
                yield f"{attempt.__name__} {name}", outcome(partial(attempt, prefix))
        yield "list all", outcome(lambda: self.list(""))
        yield "head bucket", outcome(lambda: self.client.head_bucket(**self.bucket))


EVERYWHERE = {f"{what} {where}" for what in ("get", "list") for where in ("inside", "outside", "public")}
WRITES_INSIDE = {"get inside", "put inside", "multipart inside", "abort inside"}
RIGHTS = {
    # Strict AWS would want s3:AbortMultipartUpload for `abort`; this server takes s3:PutObject for it.
    "trainer": {*WRITES_INSIDE, "list inside"},
    "nolist": WRITES_INSIDE,
    "readonly": {*EVERYWHERE, "list all", "head bucket"},
    "anonymous": {"get public", "list public"},
}


@pytest.mark.parametrize("identity", RIGHTS)
def test_rights(s3_server: S3Server, s3_prefix: str, identity: str) -> None:
    """Each identity may do what its policy says, and gets AccessDenied (403 from a HEAD) for all else."""
    outcomes = dict(Attempts(s3_server, identity, s3_prefix).outcomes())
    assert {what for what, code in outcomes.items() if code == "ok"} == RIGHTS[identity]
    assert set(outcomes.values()) <= {"ok", "AccessDenied", "403"}


def test_admin_may_do_everything(s3_server: S3Server, s3_prefix: str) -> None:
    """The admin is refused nothing."""
    outcomes = dict(Attempts(s3_server, "admin", s3_prefix).outcomes())
    assert set(outcomes.values()) == {"ok"}


@pytest.mark.parametrize(
    ("identity", "code"), [("wrong_secret", "SignatureDoesNotMatch"), ("unknown", "InvalidAccessKeyId")]
)
def test_bad_credentials(s3_server: S3Server, s3_prefix: str, identity: str, code: str) -> None:
    """A wrong secret and an unknown key are told apart, except by a HEAD."""
    outcomes = dict(Attempts(s3_server, identity, s3_prefix).outcomes())
    assert set(outcomes.values()) == {code, "403"}


def test_nobody_else_makes_buckets(s3_server: S3Server) -> None:
    """Only the admin may make a bucket."""
    for identity in RIGHTS:
        client = s3_server.client(identity)
        assert outcome(partial(client.create_bucket, Bucket="another")) == "AccessDenied"
    assert "another" not in s3_server.buckets()


def test_a_missing_key_without_the_right_to_list(s3_server: S3Server, s3_prefix: str) -> None:
    """The server says 404 to a reader without ListBucket, where AWS says 403."""
    client = s3_server.client("nolist")
    assert outcome(lambda: client.get_object(Bucket=s3_server.bucket, Key=f"{s3_prefix}/no")) == "NoSuchKey"


@pytest.mark.parametrize("identity", ["admin", "trainer"])
def test_no_write_makes_a_bucket(s3_server: S3Server, identity: str) -> None:
    """A write to a bucket that does not exist fails, and does not make it, as on AWS."""
    client, here = s3_server.client(identity), {"Bucket": "typo", "Key": "t/x"}
    expected = "NoSuchBucket" if identity == "admin" else "AccessDenied"
    for call in (
        lambda: client.put_object(**here, Body=b"x"),
        lambda: client.put_object(**here, Body=b"x", IfNoneMatch="*"),
        lambda: client.create_multipart_upload(**here),
        lambda: client.get_object(**here),
        lambda: client.list_objects_v2(Bucket="typo"),
    ):
        assert outcome(call) == expected
    assert "typo" not in s3_server.buckets()


def test_conditional_puts(s3_server: S3Server, s3_prefix: str) -> None:
    """If-Match and If-None-Match are honoured; If-Match on a missing key is 412 here, 404 on AWS."""
    here = {"Bucket": s3_server.bucket, "Key": s3_prefix}
    put = s3_server.client().put_object
    assert outcome(lambda: put(**here, Body=b"0", IfMatch='"0"')) == "PreconditionFailed"
    first = put(**here, Body=b"1", IfNoneMatch="*")["ETag"]
    assert outcome(lambda: put(**here, Body=b"2", IfNoneMatch="*")) == "PreconditionFailed"
    put(**here, Body=b"3", IfMatch=first)
    assert outcome(lambda: put(**here, Body=b"4", IfMatch=first)) == "PreconditionFailed"
    assert s3_server.get(s3_prefix) == b"3"


def test_conditional_puts_at_once(s3_server: S3Server, s3_prefix: str) -> None:
    """Of eight conditional PUTs at once, one succeeds, on the server itself."""
    put = s3_server.client().put_object

    def one(writer: int) -> str:
        return outcome(
            lambda: put(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"%d" % writer, IfNoneMatch="*")
        )

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert sorted(answers) == ["PreconditionFailed"] * 7 + ["ok"]
    assert s3_server.get(s3_prefix) == b"%d" % answers.index("ok")


def test_metadata(s3_server: S3Server, s3_prefix: str) -> None:
    """Metadata and content type come back from HEAD and GET, after a PUT and after a multipart upload."""
    said: dict[str, Any] = {"Metadata": {"ids": "a,b"}, "ContentType": "application/x-ndjson"}
    client, bucket = s3_server.client(), s3_server.bucket
    s3_server.put(f"{s3_prefix}/put", b"x", **said)
    here = {"Bucket": bucket, "Key": f"{s3_prefix}/multipart"}
    upload = {**here, "UploadId": client.create_multipart_upload(**here, **said)["UploadId"]}
    etag = client.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    assert s3_server.uploads(s3_prefix) == [(here["Key"], upload["UploadId"])]
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    for key in s3_server.keys(s3_prefix):
        for answer in (s3_server.head(key), client.get_object(Bucket=bucket, Key=key)):
            assert {name: answer[name] for name in said} == said
    assert s3_server.uploads(s3_prefix) == []


def test_versions(s3_server: S3Server, s3_prefix: str) -> None:
    """Only the versioned bucket answers a PUT and a HEAD with a version id."""
    assert "VersionId" not in s3_server.put(s3_prefix, b"x")
    stored = s3_server.put(s3_prefix, b"x", bucket=s3_server.versioned_bucket)["VersionId"]
    assert s3_server.head(s3_prefix, bucket=s3_server.versioned_bucket)["VersionId"] == stored


def test_raw_looks(s3_server: S3Server, s3_prefix: str) -> None:
    """The raw methods tell what is there, and None for what is not, but never hide a missing bucket."""
    assert (s3_server.get(s3_prefix), s3_server.head(s3_prefix), s3_server.keys(s3_prefix)) == (
        None,
        None,
        [],
    )
    s3_server.put(f"{s3_prefix}/a", b"")
    assert s3_server.get(f"{s3_prefix}/a") == b""
    assert s3_server.keys(s3_prefix) == [f"{s3_prefix}/a"]
    s3_server.delete(f"{s3_prefix}/a")
    assert s3_server.keys(s3_prefix) == []
    assert {s3_server.bucket, s3_server.versioned_bucket} <= set(s3_server.buckets())
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3_server.get(s3_prefix, bucket="typo")


def test_options(s3_server: S3Server) -> None:
    """What s3fs gets names the identity and the endpoint, and the secrets stay out of the server's repr."""
    options = s3_server.options("trainer", endpoint="http://127.0.0.1:1")
    assert options == {
        "key": "AKIDTRAINER",
        "secret": s3_server.credentials["trainer"].secret,
        "endpoint_url": "http://127.0.0.1:1",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    assert s3_server.options("anonymous").keys() == {"anon", "endpoint_url", "client_kwargs"}
    assert "secret" not in repr(s3_server)


def test_the_environment_is_clean(spool_folder: Path, tmp_path: Path) -> None:
    """No AWS setting of the machine reaches a test or its children; the spool is the test's own."""
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    settings = {name for name in seen if name.startswith("AWS_")}
    assert settings == {"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_EC2_METADATA_DISABLED"}
    assert Path(seen["AWS_CONFIG_FILE"]).read_bytes() == b""
    assert Path(seen["AWS_SHARED_CREDENTIALS_FILE"]).read_bytes() == b""
    assert seen["RUNSTORE_SPOOL_DIR"] == str(spool_folder)
    assert spool_folder.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("setting", "ci", "outcome"),
    [
        ("0", "true", pytest.skip.Exception),
        ("1", "", pytest.fail.Exception),
        ("", "true", pytest.fail.Exception),
        ("", "", pytest.skip.Exception),
    ],
)
def test_without_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, ci: str, outcome: type[BaseException]
) -> None:
    """Without SeaweedFS, S3 tests fail where they must run, and are skipped where they need not."""
    monkeypatch.setenv(SETTING, setting)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_weed() is None
    with pytest.raises(outcome):
        _weed()


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    """The end of its log is in the error, and the next worker hears of it at once."""
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\necho cannot run here >&2\nexit 3\n")
    program.chmod(0o755)
    for _ in range(2):
        with (
            pytest.raises(RuntimeError, match=r"(?s)did not start.*cannot run here"),
            shared_server(tmp_path / "shared", str(program)),
        ):
            pass
    assert [path.name for path in tmp_path.glob("shared/*/ended")] == ["ended"] * 3


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what another process does."""
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended, also if nobody has asked how."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def worker(folder: Path) -> subprocess.Popen[str]:
    """Start a process that uses the server of a folder until it is killed."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.s3.server import find_weed, shared_server\n"
        "with shared_server(Path(sys.argv[1]), find_weed()) as server:\n"
        "    print(server.endpoint, flush=True)\n"
        "    time.sleep(600)\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)


def test_workers_share_a_server_that_ends_with_the_last(s3_server: S3Server, tmp_path: Path) -> None:
    """Two workers get one server; it outlives the one that started it, not both, when they are killed."""
    folder = tmp_path / "shared"
    with worker(folder) as first, worker(folder) as second:
        assert first.stdout
        assert second.stdout
        endpoint = first.stdout.readline().strip()
        assert second.stdout.readline().strip() == endpoint != s3_server.endpoint
        weed = psutil.Process(json.loads((folder / "server.json").read_text())["weed"])
        first.kill()
        first.wait()
        assert S3Server(endpoint).get("ready") == b"yes"
        second.kill()
    until(lambda: gone(weed), "the server is still there")
    until(lambda: not (folder / "server.json").exists(), "it is still announced")
    port = urlsplit(endpoint).port
    assert port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    until(lambda: bool([*folder.glob("*/ended")]), "its supervisor has not cleaned up")
    assert not [*folder.glob("*/data")]
    assert not [*Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]
    assert not [*Path("/tmp").glob(f"seaweedfs-*-{port + 10_000}.sock")]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_supervisor_leaves_no_server(tmp_path: Path) -> None:
    """The kernel ends the server when its supervisor is killed."""
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    with (tmp_path / "users.lock").open("a+") as users:
        fcntl.lockf(users, fcntl.LOCK_SH)
        _supervised(tmp_path / "place", str(program), free_ports(4))
        until((tmp_path / "place" / "pid").exists, "it was not started")
        server = psutil.Process(int((tmp_path / "place" / "pid").read_text()))
        parent = server.parent()
        assert parent
        assert "server.py" in " ".join(parent.cmdline())
        parent.kill()
        until(lambda: gone(server), "the server is still there")
