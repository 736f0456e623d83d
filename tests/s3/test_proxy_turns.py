"""Behind the fault proxy, writes to one key happen one at a time, as on AWS."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)

from tests.s3.faults import Fault, Status
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server


class Race:
    """Writes to one key at the same moment, through the proxy."""

    def __init__(self, server: S3Server, client: Any, key: str) -> None:
        self.server, self.client = server, client
        self.here = {"Bucket": server.bucket, "Key": key}

    def complete(self, data: bytes, **condition: str) -> Callable[[], Any]:
        """Prepare a multipart upload; what comes back completes it."""
        upload = {**self.here, "UploadId": self.client.create_multipart_upload(**self.here)["UploadId"]}
        etag = self.client.upload_part(**upload, PartNumber=1, Body=data)["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        return lambda: self.client.complete_multipart_upload(**upload, MultipartUpload=parts, **condition)

    def put(self, data: bytes, **condition: str) -> Callable[[], Any]:
        """Prepare a PUT."""
        return lambda: self.client.put_object(**self.here, Body=data, **condition)

    def run(self, *writes: Callable[[], Any]) -> list[int]:
        """Start all at once, and give their statuses."""
        barrier = threading.Barrier(len(writes))

        def one(write: Callable[[], Any]) -> int:
            barrier.wait(10)
            try:
                answer = write()
            except ClientError as error:
                answer = error.response
            return int(answer["ResponseMetadata"]["HTTPStatusCode"])

        with ThreadPoolExecutor(len(writes)) as pool:
            return list(pool.map(one, writes))


@pytest.mark.parametrize("kinds", ["cccc", "ccpp"])
@pytest.mark.parametrize("new", [True, False], ids=["if-none-match", "if-match"])
def test_one_conditional_write_wins(
    s3_server: S3Server, client: Any, s3_prefix: str, kinds: str, new: bool
) -> None:
    """Of four conditional writes at once, completes or PUTs, one succeeds and is stored; three get 412.

    The server alone lets two to four of them succeed in most rounds, as soon as a complete is among them.
    """
    for number in range(6):
        race = Race(s3_server, client, f"{s3_prefix}/{number}")
        key = race.here["Key"]
        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": s3_server.put(key, b"first")["ETag"]}
        contents = [f"writer {writer}".encode() for writer in range(4)]
        makers = {"c": race.complete, "p": race.put}
        writes = [makers[kind](data, **condition) for kind, data in zip(kinds, contents, strict=True)]
        answers = race.run(*writes)
        assert sorted(answers) == [200, 412, 412, 412]
        assert s3_server.get(key) == contents[answers.index(200)]


def test_a_complete_never_undoes_a_later_write(s3_server: S3Server, client: Any, s3_prefix: str) -> None:
    """A complete that saw the old ETag succeeds before a plain PUT, which then stands, or not at all."""
    for number in range(10):
        race = Race(s3_server, client, f"{s3_prefix}/{number}")
        etag = s3_server.put(race.here["Key"], b"first")["ETag"]
        answers = race.run(race.complete(b"completed", IfMatch=etag), race.put(b"put"))
        assert answers[0] in {200, 412}
        assert answers[1] == 200
        assert s3_server.get(race.here["Key"]) == b"put"


def test_a_stale_complete_is_refused_by_the_server(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """It is the server that answers 412, and the upload can still be completed with the right ETag."""
    race = Race(s3_server, client, s3_prefix)
    old = s3_server.put(s3_prefix, b"one")["ETag"]
    new = s3_server.put(s3_prefix, b"two")["ETag"]
    assert race.run(race.complete(b"three", IfMatch=old)) == [412]
    ((_, upload),) = s3_server.uploads(s3_prefix)
    assert s3_server.get(s3_prefix) == b"two"
    parts = client.list_parts(**race.here, UploadId=upload)["Parts"]
    chosen = {"Parts": [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in parts]}
    client.complete_multipart_upload(**race.here, UploadId=upload, MultipartUpload=chosen, IfMatch=new)
    assert s3_server.get(s3_prefix) == b"three"
    assert s3_server.uploads(s3_prefix) == []
    assert {seen.fault for seen in proxy.requests} == {None}


@pytest.mark.parametrize("fault", [Status(500, "InternalError"), "reset", "lost_reply", "cut"])
def test_a_failed_complete_frees_its_key(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str, fault: Fault
) -> None:
    """Whatever happens to one complete, the next write to the key gets its turn."""
    race = Race(s3_server, client, s3_prefix)
    complete = race.complete(b"data")
    rule = proxy.fail(fault, operation="CompleteMultipartUpload", times=1)
    with pytest.raises(
        (ClientError, ConnectionClosedError, HTTPClientError, ResponseStreamingError, IncompleteReadError)
    ):
        complete()
    assert rule.hits == 1
    assert race.run(race.put(b"after")) == [200]
    assert s3_server.get(s3_prefix) == b"after"
