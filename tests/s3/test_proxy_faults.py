"""The fault proxy does what it is told, to real requests to the real server."""

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)

from tests.s3.by_hand import presigned
from tests.s3.faults import Status
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server

# A connection that ended without an answer, as botocore tells it.
BROKEN = (ConnectionClosedError, HTTPClientError)


def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Call in a thread of its own."""
    executor = ThreadPoolExecutor(1)
    future = executor.submit(call, *args, **kwargs)
    executor.shutdown(wait=False)
    return future


@pytest.mark.parametrize(
    "status",
    [
        Status(503, "SlowDown", headers=(("Retry-After", "7"),)),
        Status(429, "TooManyRequests"),
        Status(500, "InternalError"),
        Status(403, "ExpiredToken"),
        Status(400, "RequestTimeout"),
        Status(404, "NoSuchBucket"),
    ],
    ids=lambda status: status.error,
)
def test_made_up_errors(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str, status: Status
) -> None:
    """A made-up error arrives as S3's own would, so many times as asked, and the server never hears of it."""
    proxy.fail(status, times=2, operation="PutObject")
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"x" * 500_000)
        answer = caught.value.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == status.code
        assert answer["Error"]["Code"] == status.error
        for name, value in status.headers:
            assert answer["ResponseMetadata"]["HTTPHeaders"][name.lower()] == value
    assert s3_server.get(s3_prefix) is None
    client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"third time")
    assert s3_server.get(s3_prefix) == b"third time"
    seen = [(request.status, request.fault) for request in proxy.requests]
    assert seen == [(status.code, status.error)] * 2 + [(200, None)]


def test_a_made_up_error_to_a_head_has_no_body(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """A refused HEAD leaves the connection fit for the next request."""
    s3_server.put(s3_prefix, b"x")
    proxy.fail(Status(403, "AccessDenied"), operation="HeadObject", times=1)
    with pytest.raises(ClientError, match="403"):
        client.head_object(Bucket=s3_server.bucket, Key=s3_prefix)
    assert client.head_object(Bucket=s3_server.bucket, Key=s3_prefix)["ContentLength"] == 1
    assert proxy.connections == 1


def statuses(proxy: FaultProxy, client: Any, server: S3Server, key: str, count: int) -> list[bool]:
    """Read a key so many times: whether it worked."""
    worked = []
    for _ in range(count):
        try:
            client.get_object(Bucket=server.bucket, Key=key)["Body"].read()
        except ClientError:
            worked.append(False)
        else:
            worked.append(True)
    return worked


def test_which_requests_a_rule_takes(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """Every so-manieth, after so many, at most so many, only this operation and this key; then healed."""
    one, two = f"{s3_prefix}/one", f"{s3_prefix}/two"
    for key in (one, two):
        s3_server.put(key, b"x")
    rule = proxy.fail(
        Status(500, "InternalError"), every=3, key="*/one", operation=("GetObject", "PutObject")
    )
    assert statuses(proxy, client, s3_server, one, 7) == [True, True, False, True, True, False, True]
    assert statuses(proxy, client, s3_server, two, 3) == [True] * 3
    client.head_object(Bucket=s3_server.bucket, Key=one)
    assert (rule.seen, rule.hits) == (7, 2)
    proxy.heal()
    proxy.fail(Status(500, "InternalError"), after=2, times=2)
    assert statuses(proxy, client, s3_server, one, 6) == [True, True, False, False, True, True]
    proxy.fail(Status(500, "InternalError"))
    assert statuses(proxy, client, s3_server, one, 2) == [False] * 2
    proxy.heal()
    assert statuses(proxy, client, s3_server, one, 2) == [True] * 2


def test_the_first_rule_that_takes_a_request_has_it(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """Of two rules the one made first comes first; when it is used up, the other."""
    proxy.fail(Status(503, "SlowDown"), times=1)
    proxy.fail(Status(500, "InternalError"), times=1)
    codes = []
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)
        codes.append(caught.value.response["Error"]["Code"])
    assert codes == ["SlowDown", "InternalError"]


def test_reset(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """The client's connection is reset, and the server never hears of the request."""
    proxy.fail("reset", times=1)
    with pytest.raises(BROKEN):
        client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"x" * 2_000_000)
    assert s3_server.get(s3_prefix) is None
    (seen,) = proxy.requests
    assert (seen.status, seen.fault, seen.bytes_out) == (None, "reset", 0)
    client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"again")
    assert s3_server.get(s3_prefix) == b"again"


def test_a_reset_is_a_real_one(proxy: FaultProxy) -> None:
    """What the client's kernel gets is a RST, not an orderly end."""
    proxy.fail("reset")
    with socket.create_connection(("127.0.0.1", int(proxy.endpoint.rpartition(":")[2]))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_cut(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """The head announces the whole body, half of it arrives, and the connection ends."""
    s3_server.put(s3_prefix, b"x" * 1_000_000)
    proxy.fail("cut", operation="GetObject", times=1)
    answer = client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)
    assert answer["ContentLength"] == 1_000_000
    with pytest.raises((IncompleteReadError, ResponseStreamingError), match="500000"):
        answer["Body"].read()
    assert statuses(proxy, client, s3_server, s3_prefix, 1) == [True]


def test_cut_of_an_answer_without_a_body(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """A write whose answer is cut has happened, and its client cannot know."""
    proxy.fail("cut", operation="PutObject", times=1)
    with pytest.raises(BROKEN):
        client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"x")
    assert s3_server.get(s3_prefix) == b"x"


def test_lost_reply(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """The server has acted when the client's connection ends without a byte of the answer."""
    proxy.fail("lost_reply", times=1)
    with pytest.raises(BROKEN):
        client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"x" * 100_000)
    assert s3_server.get(s3_prefix) == b"x" * 100_000
    (seen,) = proxy.requests
    assert (seen.status, seen.fault) == (200, "lost_reply")
    # At most the permission to send the body.
    assert seen.bytes_out in {0, len("HTTP/1.1 100 Continue\r\n\r\n")}


def test_hang(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """A request that hangs does nothing until its rule is released; others pass meanwhile."""
    rule = proxy.fail("hang", operation="PutObject", key="*/slow")
    put = in_thread(client.put_object, Bucket=s3_server.bucket, Key=f"{s3_prefix}/slow", Body=b"late")
    rule.wait()
    client.put_object(Bucket=s3_server.bucket, Key=f"{s3_prefix}/other", Body=b"x")
    assert s3_server.keys(s3_prefix) == [f"{s3_prefix}/other"]
    assert not put.done()
    rule.release()
    assert put.result(10)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert s3_server.get(f"{s3_prefix}/slow") == b"late"


def test_stop_and_start(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """A stopped proxy ends its connections, drops what hung and refuses new ones; it comes back unchanged."""
    rule = proxy.fail("hang", times=1)
    put = in_thread(client.put_object, Bucket=s3_server.bucket, Key=s3_prefix, Body=b"never")
    rule.wait()
    proxy.stop()
    with pytest.raises(BROKEN):
        put.result(10)
    with pytest.raises(EndpointConnectionError):
        client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)
    proxy.stop()
    proxy.start()
    proxy.start()
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)
    proxy.wait(times=2)  # the client has its answer an instant before the proxy is done with it
    assert proxy.count() == 2


def test_a_stopped_proxy_is_gone_for_forked_processes_too(proxy: FaultProxy) -> None:
    """A forked process holds the listening socket as well; a stopped proxy refuses all the same."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        proxy.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(proxy.endpoint.rpartition(":")[2])), timeout=5)
        proxy.start()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_latency(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str) -> None:
    """Each request takes the latency twice, once each way, however many bytes it moves."""
    s3_server.put(s3_prefix, b"x" * 10_000_000)
    client.head_object(Bucket=s3_server.bucket, Key=s3_prefix)
    proxy.latency = 0.1
    began = time.monotonic()
    client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)["Body"].read()
    assert 0.2 <= time.monotonic() - began < 3
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: client.head_object(Bucket=s3_server.bucket, Key=s3_prefix), range(20)))
    assert 0.2 <= time.monotonic() - began < 3, "twenty at once wait together, not in turn"


def test_latency_of_made_up_answers(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """A made-up answer takes as long as a real one."""
    proxy.latency = 0.1
    proxy.fail(Status(503, "SlowDown"))
    began = time.monotonic()
    with pytest.raises(ClientError):
        client.head_object(Bucket=s3_server.bucket, Key=s3_prefix)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("way", ["in", "out"])
def test_throttle(s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str, way: str) -> None:
    """At 1 MB/s, 500 KB take half a second, each way."""
    s3_server.put(s3_prefix, b"x" * 500_000)
    proxy.throttle = 1_000_000
    began = time.monotonic()
    if way == "in":
        client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"y" * 500_000)
    else:
        client.get_object(Bucket=s3_server.bucket, Key=s3_prefix)["Body"].read()
    assert 0.45 < time.monotonic() - began < 5


def test_a_client_that_dies_inside_its_request(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """Half an upload is not stored, and does not keep others from the key."""
    address, target = presigned(client, "put_object", Bucket=s3_server.bucket, Key=s3_prefix)
    head = f"PUT {target} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Length: 1000000\r\n\r\n"
    with socket.create_connection(address) as connection:
        connection.sendall(head.encode() + b"x" * 300_000)
    proxy.wait("PutObject")
    client.put_object(Bucket=s3_server.bucket, Key=s3_prefix, Body=b"mine")
    assert s3_server.get(s3_prefix) == b"mine"
    assert [seen.status for seen in proxy.requests if seen.status == 200] == [200]


def test_waiting_in_vain_says_what_there_was(
    s3_server: S3Server, proxy: FaultProxy, client: Any, s3_prefix: str
) -> None:
    """Waiting for a request that does not come, or for a rule that is not met, ends with what happened."""
    client.list_objects_v2(Bucket=s3_server.bucket, Prefix=s3_prefix)
    with pytest.raises(TimeoutError, match="ListObjectsV2"):
        proxy.wait("PutObject", seconds=0.01)
    with pytest.raises(TimeoutError, match="reset"):
        proxy.fail("reset").wait(seconds=0.01)
