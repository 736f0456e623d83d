"""Requests pass the fault proxy unchanged, and are counted."""

import http.client
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests import scripts
from tests.s3.by_hand import presigned, read_to_end
from tests.s3.faults import Status
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server


@pytest.mark.parametrize(
    "name", ["plain", "a b", "ünï/日本", "100%", "p%20q", "a+b", "q?x=1&y", "h#1", "a//b"]
)
def test_signed_requests_pass(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str, name: str
) -> None:
    """What a client signed for the proxy's address is accepted by the server, whatever the key."""
    key = f"{s3_prefix}/{name}"
    client.put_object(Bucket=s3_server.bucket, Key=key, Body=b"data", Metadata={"note": "kept"})
    assert s3_server.get(key) == b"data"
    assert client.get_object(Bucket=s3_server.bucket, Key=key)["Body"].read() == b"data"
    assert client.head_object(Bucket=s3_server.bucket, Key=key)["Metadata"] == {"note": "kept"}
    listed = client.list_objects_v2(Bucket=s3_server.bucket, Prefix=key)
    assert [found["Key"] for found in listed["Contents"]] == [key]
    assert [(seen.operation, seen.key, seen.status) for seen in proxy.requests] == [
        ("PutObject", key, 200),
        ("GetObject", key, 200),
        ("HeadObject", key, 200),
        ("ListObjectsV2", "", 200),
    ]


def test_operations_are_named(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """Each request is logged under the name that AWS gives its operation."""
    here = {"Bucket": s3_server.bucket, "Key": f"{s3_prefix}/big"}
    client.put_object(**here, Body=b"x")
    upload = {**here, "UploadId": client.create_multipart_upload(**here)["UploadId"]}
    client.upload_part(**upload, PartNumber=1, Body=b"y")
    copied = client.upload_part_copy(**upload, PartNumber=1, CopySource=here)["CopyPartResult"]["ETag"]
    client.list_parts(**upload)
    client.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=s3_prefix)
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": copied}]})
    client.abort_multipart_upload(**here, UploadId=client.create_multipart_upload(**here)["UploadId"])
    client.copy_object(**here, CopySource=here, MetadataDirective="REPLACE")
    client.delete_objects(Bucket=s3_server.bucket, Delete={"Objects": [{"Key": here["Key"]}]})
    client.delete_object(**here)
    client.list_objects(Bucket=s3_server.bucket, Prefix=s3_prefix)
    client.head_bucket(Bucket=s3_server.bucket)
    client.list_buckets()
    assert [seen.operation for seen in proxy.requests] == [
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "UploadPartCopy",
        "ListParts",
        "ListMultipartUploads",
        "CompleteMultipartUpload",
        "CreateMultipartUpload",
        "AbortMultipartUpload",
        "CopyObject",
        "DeleteObjects",
        "DeleteObject",
        "ListObjects",
        "HeadBucket",
        "ListBuckets",
    ]
    assert proxy.count() == 15
    assert proxy.count("CreateMultipartUpload", key=f"{s3_prefix}/*") == 2
    assert proxy.count("CreateMultipartUpload", key="elsewhere/*") == 0
    proxy.clear()
    assert (proxy.count(), proxy.bytes_in, proxy.bytes_out, proxy.connections) == (0, 0, 0, 0)


def test_an_unknown_operation_is_a_mistake(proxy: FaultProxy) -> None:
    """A misspelt operation is an error, not a rule or a count that nothing fits."""
    with pytest.raises(ValueError, match="GetObjects"):
        proxy.fail("reset", operation="GetObjects")
    with pytest.raises(ValueError, match="PutObjekt"):
        proxy.count("PutObjekt")


def test_large_bodies_pass_unchanged(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """20 MB come through unchanged in both directions, and are counted."""
    data = os.urandom(20_000_000)
    client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=data)
    assert s3_server.get(s3_prefix) == data
    assert client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)["Body"].read() == data
    put, get = proxy.requests
    assert 0 < put.bytes_in - len(data) < 4_000
    assert 0 < get.bytes_out - len(data) < 2_000
    assert put.bytes_out + get.bytes_in < 4_000


def test_bytes_are_counted_exactly(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """The counts are the bytes on the client's own connection, heads and bodies, no more and no less."""
    s3_server.put(s3_prefix, b"x" * 100_000)
    address, target = presigned(client, "get_object", Bucket=s3_server.bucket, Key=s3_prefix)
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nConnection: close\r\n\r\n".encode()
    )
    with socket.create_connection(address) as connection:
        connection.sendall(request)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"x" * 100_000)
    (seen,) = proxy.requests
    assert (seen.bytes_in, seen.bytes_out) == (len(request), len(answer)) == (proxy.bytes_in, proxy.bytes_out)


def test_a_chunked_body_passes(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """A request body without a length, sent in chunks, arrives whole, and the connection goes on."""
    address, target = presigned(client, "put_object", Bucket=s3_server.bucket, Key=s3_prefix)
    connection = http.client.HTTPConnection(*address)
    for size in (1, 100_000, 400_000):
        connection.request(
            "PUT", target, body=iter([b"a" * size, b"b" * size]), headers={}, encode_chunked=True
        )
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        assert s3_server.get(s3_prefix) == b"a" * size + b"b" * size
    connection.close()
    assert proxy.connections == 1


def test_an_early_refusal_arrives(s3_server: S3Server, proxy: FaultProxy, s3_prefix: str) -> None:
    """A server that refuses without reading 8 MB of body is heard, not taken for a broken connection."""
    liar = s3_server.client("wrong_secret", endpoint=proxy.endpoint)
    address, target = presigned(liar, "put_object", Bucket=s3_server.bucket, Key=s3_prefix)
    connection = http.client.HTTPConnection(*address)
    connection.request("PUT", target, body=b"x" * 8_000_000)
    answer = connection.getresponse()
    assert answer.status == 403
    assert b"SignatureDoesNotMatch" in answer.read()
    connection.close()
    assert s3_server.get(s3_prefix) is None


def test_connections_are_kept(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """Requests in turn share one connection, also after errors, one that the proxy made up too."""
    proxy.fail(Status(503, "SlowDown"), times=1, operation="HeadObject")
    for _ in range(5):
        client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"x" * 1_000)
        client.list_objects_v2(Bucket=s3_server.bucket, Prefix=s3_prefix)
        with pytest.raises(ClientError):
            client.head_object(Bucket=s3_server.bucket, Key=f"{s3_prefix}/missing")
    assert proxy.connections == 1
    assert proxy.count() == 15


@pytest.mark.anyio
async def test_asynchronous_clients(s3_server: S3Server, proxy: FaultProxy, s3_prefix: str) -> None:
    """Aiobotocore, on either loop, reads and writes through the proxy, many requests at once."""
    import anyio  # noqa: PLC0415 - only this test is asynchronous
    from aiobotocore.session import get_session  # noqa: PLC0415 - the same

    known = s3_server.credentials["admin"]
    maker = get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=proxy.endpoint,
        aws_access_key_id=known.key,
        aws_secret_access_key=known.secret,
    )
    async with maker as client:

        async def there_and_back(number: int) -> None:
            key, data = f"{s3_prefix}/{number}", os.urandom(50_000)
            await client.put_object(Bucket=s3_server.bucket, Key=key, Body=data)
            answer = await client.get_object(Bucket=s3_server.bucket, Key=key)
            async with answer["Body"] as stream:
                assert await stream.read() == data

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(there_and_back, number)
    assert len(s3_server.keys(s3_prefix)) == proxy.count("PutObject") == proxy.count("GetObject") == 20


def test_child_processes(s3_server: S3Server, proxy: FaultProxy, s3_prefix: str, tmp_path: Path) -> None:
    """Another process uses the proxy, and meets its faults."""
    proxy.fail(Status(500, "InternalError"), times=1)
    script = scripts.write_script(
        tmp_path,
        """
        import sys
        import botocore.session
        from botocore.exceptions import ClientError
        endpoint, key, secret, bucket, name = sys.argv[1:]
        client = botocore.session.get_session().create_client(
            "s3", region_name="us-east-1", endpoint_url=endpoint, aws_access_key_id=key,
            aws_secret_access_key=secret,
        )
        client.put_object(Bucket=bucket, Key=name, Body=b"from a child")
        """,
    )
    known = s3_server.credentials["admin"]
    done = scripts.run(script, proxy.endpoint, known.key, known.secret, s3_server.bucket, s3_prefix)
    assert (done.returncode, done.stderr) == (0, "")
    assert s3_server.get(s3_prefix) == b"from a child"
    assert [seen.status for seen in proxy.requests] == [500, 200]


def test_the_thread_ends(s3_server: S3Server) -> None:
    """A proxy that is left leaves no thread, no socket and no task behind."""
    before = threading.active_count()
    with FaultProxy(s3_server.endpoint) as proxy:
        s3_server.client(endpoint=proxy.endpoint).list_buckets()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
