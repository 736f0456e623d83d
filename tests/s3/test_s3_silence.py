"""Servers that fall silent, callers that give up, credentials that are refused: nobody waits for ever."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from runstore import CredentialsError, Storage, UnavailableError, storage_from_uri
from runstore.remote import _s3_client
from tests.s3.proxy import FaultProxy, Status
from tests.s3.server import S3Server

CALLS: dict[str, Callable[[Storage], object]] = {
    "PutObject": lambda storage: storage.write("f", b"2"),
    "GetObject": lambda storage: storage.read("f"),
    "ListObjectsV2": lambda storage: storage.list_dir(""),
}


@pytest.mark.parametrize("operation", CALLS)
def test_a_silent_server_is_given_up(
    s3_server: S3Server, s3_uri: str, proxy: FaultProxy, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes a request and says nothing costs no more than the budget, writes too."""
    monkeypatch.setattr(_s3_client, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(_s3_client, "BUDGET_SECONDS", 1.0)
    options = s3_server.options(endpoint=proxy.endpoint)
    storage = storage_from_uri(s3_uri, config_kwargs={"read_timeout": 1}, **options)
    storage.write("f", b"1")
    proxy.fail("hang", operation=operation)
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match=proxy.endpoint):
        CALLS[operation](storage)
    assert time.monotonic() - begin < 15
    proxy.heal()
    storage.write("f", b"3")
    assert storage.read("f") == b"3"
    storage.close()


@pytest.mark.anyio
async def test_calls_cancelled_at_once_all_end(s3_server: S3Server, s3_uri: str) -> None:
    """Calls given up at any moment, before they have begun too, end: none waits for ever."""
    storage = storage_from_uri(s3_uri, **s3_server.options())
    await storage.awrite("f", b"1")

    async def give_up(seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await storage.aread("f")
        except TimeoutError:
            return None

    async with asyncio.timeout(30):
        for number in range(100):
            results = await asyncio.gather(*[give_up(number * 2e-5 + index * 1e-4) for index in range(5)])
            assert set(results) <= {None, b"1"}
    assert await storage.aread("f") == b"1"
    await storage.aclose()


@pytest.mark.anyio
async def test_a_cancelled_write_does_not_go_on_trying(
    s3_server: S3Server, s3_uri: str, proxy: FaultProxy
) -> None:
    """In an outage a cancelled write ends with the attempt that is under way, not with the budget."""
    storage = storage_from_uri(s3_uri, **s3_server.options(endpoint=proxy.endpoint))
    await storage.awrite("f", b"1")
    await asyncio.to_thread(proxy.stop)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await storage.awrite("f", b"2")
    assert time.monotonic() - begin < 5
    await asyncio.to_thread(proxy.start)
    assert await storage.aread("f") == b"1"
    await storage.aclose()


def test_a_reader_without_rights_stands_in_nobodys_way(s3_server: S3Server, s3_uri: str) -> None:
    """Pending appends stay with the credentials they were made with, whoever else flushes or closes."""
    good = storage_from_uri(s3_uri, flush_interval=3600, **s3_server.options())
    bad = storage_from_uri(s3_uri, **s3_server.options("wrong_secret"))
    good.append("f", b"1\n")
    bad.close()
    assert good.read("f") == b"1\n"
    with pytest.raises(CredentialsError):
        bad.read("f")
    good.append("f", b"2\n")
    good.close()
    assert storage_from_uri(s3_uri, **s3_server.options()).read("f") == b"1\n2\n"


def test_credentials_that_were_refused_give_way(s3_server: S3Server, s3_uri: str) -> None:
    """Appended with a wrong secret, then opened anew with the right one: a flush delivers."""
    bad = storage_from_uri(s3_uri, flush_interval=3600, **s3_server.options("wrong_secret"))
    bad.append("f", b"1\n")
    with pytest.raises(CredentialsError):
        bad.flush()
    good = storage_from_uri(s3_uri, **s3_server.options())
    good.flush()
    assert good.read("f") == b"1\n"


def test_a_refused_look_does_not_change_the_size(
    s3_server: S3Server, s3_prefix: str, s3_uri: str, proxy: FaultProxy
) -> None:
    """An answer without a reason is looked into by another request; the size is the object's all the same."""
    s3_server.put(f"{s3_prefix}/f", b"x" * 1000)
    storage = storage_from_uri(s3_uri, **s3_server.options(endpoint=proxy.endpoint))
    proxy.fail(Status(403, "AccessDenied"), operation="HeadObject")
    stat = storage.stat("f")
    assert stat is not None
    assert stat.size == 1000
