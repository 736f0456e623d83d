"""Requests to S3: one pooled client a process for each endpoint and credentials, on the I/O loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from runstore.errors import BucketWarning, InvalidInputError, NotFoundError, RunStoreError, StorageIOError
from runstore.remote._errors import (
    Target,
    error_code,
    remote_error,
    warn,
    without_userinfo,
)
from runstore.remote._redaction import blot_out, secrets_among, secrets_in
from runstore.remote._retry import BUDGET_SECONDS, Attempts
from runstore.remote._shared import Shared
from runstore.storage._bridge import in_thread, no_fork, on_fork

__all__ = ["Got", "S3Client", "clients"]

T = TypeVar("T")

# An endpoint that never answered is likely a wrong one.
FIRST_BUDGET_SECONDS = 2.0
ANSWER_SECONDS = 20.0
FIRST_ANSWER_SECONDS = 5.0
COPY_SECONDS = 60.0  # more, where the server copies up to 512 MiB before it answers
SLOWEST_UPLOAD = 100_000  # bytes a second
# The default of botocore, 10, makes 50 polls at once wait for each other.
CONNECTIONS = 64


class Got(NamedTuple):
    """Bytes of an object, and what came with them."""

    data: bytes
    answer: dict[str, Any]


class S3Client(Shared):
    """Requests with retries, their errors turned into those of this package."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._options = dict(options)
        self.secrets = secrets_in(options)
        self._filesystem: Any = None
        self._connecting = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._answered = False
        self._heeds_conditions: bool | None = None
        self._proven: set[str] = set()

    # ---- connection

    @property
    def connected(self) -> bool:
        """Whether there is something to close."""
        return self._filesystem is not None

    async def close(self) -> None:
        filesystem, self._filesystem = self._filesystem, None
        if filesystem is not None:
            client = await filesystem.set_session()
            await client.close()

    async def connect(self) -> Any:
        """The client of botocore, made at the first request."""
        if self._filesystem is None:
            async with self._connecting:
                if self._filesystem is None:
                    loop = asyncio.get_running_loop()
                    filesystem = await in_thread(self._make_filesystem, loop)
                    await filesystem.set_session()
                    self._filesystem = filesystem
        return await self._filesystem.set_session()

    async def prepare(self, url: str) -> None:
        """Make the client, without a request.

        Raises:
            RunStoreError: It cannot be made.
        """
        try:
            await self.connect()
        except Exception as error:
            raise remote_error(error, self.target(url)) from error

    async def _learn_secrets(self) -> None:
        """Learn credentials that are not among the options, and may change."""
        if _has_its_own(self._filesystem):
            return
        credentials = await self._filesystem.session.get_credentials()
        secrets = secrets_among(await credentials.get_frozen_credentials() if credentials else ())
        if not secrets <= self.secrets:
            self.secrets |= secrets
            blot_out(self.secrets)

    def _make_filesystem(self, loop: asyncio.AbstractEventLoop) -> Any:
        """An s3fs filesystem of our own, with all that blocks done here, in a thread."""
        with no_fork():  # a child forked in the middle of an import could never import it
            import s3fs  # noqa: PLC0415  `import runstore` stays light
            from aiobotocore.session import AioSession  # noqa: PLC0415

        blot_out(self.secrets)
        config = {
            "max_pool_connections": CONNECTIONS,
            "retries": {"max_attempts": 0},
            # For who reads the server's log; botocore makes its own anew for each request.
            "user_agent": f"runstore s3fs/{s3fs.__version__}",
        }
        options = self._options | {"config_kwargs": config | (self._options.get("config_kwargs") or {})}
        try:
            filesystem = s3fs.S3FileSystem(
                asynchronous=True, loop=loop, skip_instance_cache=True, use_listings_cache=False, **options
            )
            made = filesystem.session is None
            filesystem.session = AioSession(**filesystem.kwargs) if made else filesystem.session
        except TypeError as error:
            msg = f"no S3 filesystem can be made with the options {', '.join(sorted(self._options))}: {error}"
            raise InvalidInputError(msg) from error
        if made:
            _warm_up(filesystem.session, credentials=not _has_its_own(filesystem))
        return filesystem

    # ---- requests

    @property
    def endpoint(self) -> str:
        """Where requests go, for messages."""
        if self._filesystem is None or self._filesystem._s3 is None:  # noqa: SLF001  there is no public way
            return str(self._options.get("endpoint_url") or "the S3 endpoint")
        return without_userinfo(str(self._filesystem._s3.meta.endpoint_url))  # noqa: SLF001

    def target(self, url: str) -> Target:
        """An object of this server, for messages."""
        return Target(url, self.endpoint, self.secrets)

    @property
    def budget(self) -> float:
        """Seconds for which an operation goes on trying."""
        return BUDGET_SECONDS if self._answered else FIRST_BUDGET_SECONDS

    async def once(self, operation: str, url: str, **parameters: Any) -> dict[str, Any]:
        """One attempt at a request, without a body in the answer.

        Args:
            operation: Its name in the API of S3, `PutObject` say.
            url: The object, for messages.
            **parameters: As botocore takes them; the filesystem's own additions come under them.

        Raises:
            RunStoreError: It failed; the cause is what the client raised.
        """
        return (await self._once(operation, url, parameters, read=False)).answer

    async def request(self, operation: str, url: str, **parameters: Any) -> dict[str, Any]:
        """The same, tried again within the budget; only for what may be done twice."""
        attempts = Attempts(self.budget)
        while True:
            try:
                return await self.once(operation, url, **parameters)
            except RunStoreError as error:
                await attempts.again_after(error)

    async def get(self, url: str, **parameters: Any) -> Got:
        """GetObject with its body, whole: an answer that was cut short counts as a failure."""
        attempts = Attempts(self.budget)
        while True:
            try:
                return await self._once("GetObject", url, parameters, read=True)
            except RunStoreError as error:
                await attempts.again_after(error)

    async def _once(self, operation: str, url: str, parameters: dict[str, Any], *, read: bool) -> Got:
        try:
            client = await self.connect()
            await self._learn_secrets()
            method = _method(client, operation)
            # A server that falls silent before it takes a body is not seen by the timeouts of the client.
            async with asyncio.timeout(self._patience(operation, parameters)):
                answer: dict[str, Any] = await method(**self._parameters(client, operation, parameters))
            self._answered = True
            self._proven.add(parameters["Bucket"])
            if not read:
                return Got(b"", answer)
            async with answer["Body"] as body:
                data = await body.read()
            if len(data) != answer.get("ContentLength", len(data)):
                msg = f"the body ended after {len(data)} of {answer['ContentLength']} bytes"
                raise ConnectionError(msg)  # noqa: TRY301  as any lost connection
        except Exception as error:
            self._answered |= bool(error_code(error))
            raise remote_error(error, self.target(url), operation) from error
        return Got(data, answer)

    def _patience(self, operation: str, parameters: dict[str, Any]) -> float:
        """Seconds until an answer must have begun."""
        silent = ANSWER_SECONDS if self._answered else FIRST_ANSWER_SECONDS
        silent = max(silent, float((self._options.get("config_kwargs") or {}).get("read_timeout", 0)))
        work = COPY_SECONDS if operation in {"UploadPartCopy", "CompleteMultipartUpload"} else 0.0
        return silent + work + len(parameters.get("Body", b"")) / SLOWEST_UPLOAD

    def _parameters(self, client: Any, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """What the request takes of the filesystem's own additions, and what is given."""
        filesystem = self._filesystem
        known = client.meta.service_model.operation_model(operation).input_shape.members
        added = {**filesystem.s3_additional_kwargs, **filesystem.req_kw}
        return {name: value for name, value in added.items() if name in known} | given

    async def learn_conditions(self, url: str, bucket: str, key: str) -> None:
        """Find out, once for this endpoint, whether it refuses a write whose condition does not hold.

        Asked on a key of our own, where an endpoint that does makes nothing.
        """
        if self._heeds_conditions is not None or _is_aws(self.endpoint):
            return
        async with self._asking:
            if self._heeds_conditions is None:
                await self._ask_for_conditions(url, {"Bucket": bucket, "Key": f"{key}.runstore-probe"})

    async def _ask_for_conditions(self, url: str, where: dict[str, str]) -> None:
        try:
            await self.once("PutObject", url, **where, Body=b"", IfMatch=f'"{"0" * 32}"')
        except RunStoreError as error:
            if error_code(error.__cause__) and not isinstance(error, PermissionError | ConnectionError):
                self._heeds_conditions = True
            return
        self._heeds_conditions = False
        warn(
            f"the server at {self.endpoint} ignores the conditions of conditional writes: two writers of one "
            f"file overwrite each other's appends there; let one process alone write {url}, and each file",
            BucketWarning,
        )
        with contextlib.suppress(RunStoreError):  # there may be no right to it
            await self.request("DeleteObject", url, **where)

    async def head(self, url: str, bucket: str, key: str) -> dict[str, Any] | None:
        """What is known of an object, `None` when it is missing.

        An answer without a body cannot say why it failed: another request then asks.
        """
        try:
            return await self.request("HeadObject", url, Bucket=bucket, Key=key)
        except NotFoundError:
            if bucket in self._proven:
                return None
        except (PermissionError, StorageIOError) as error:
            if error_code(error.__cause__) not in {"400", "403", "404"}:
                raise
        try:
            answer = (await self.get(url, Bucket=bucket, Key=key, Range="bytes=0-0")).answer
            return answer | {"ContentLength": int(answer["ContentRange"].rpartition("/")[2])}
        except NotFoundError:
            self._proven.add(bucket)
            return None


def _is_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _method(client: Any, operation: str) -> Callable[..., Any]:
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in operation).lstrip("_")
    return cast("Callable[..., Any]", getattr(client, name))


def _has_its_own(filesystem: Any) -> bool:
    """Whether a filesystem needs no credentials from its session."""
    from botocore import UNSIGNED  # noqa: PLC0415

    unsigned = filesystem.anon or filesystem.config_kwargs.get("signature_version") is UNSIGNED
    return bool(unsigned or filesystem.key or filesystem.client_kwargs.get("aws_access_key_id"))


@functools.cache
def _loader(path: str | None) -> Any:
    """The descriptions of services that botocore comes with, read once for all clients.

    A client of its own, over the same loader, reads what one of aiobotocore does, which so does not block
    the loop.
    """
    from botocore.loaders import create_loader  # noqa: PLC0415
    from botocore.session import Session  # noqa: PLC0415

    loader, session = create_loader(path), Session()
    session.register_component("data_loader", loader)
    with no_fork():  # it imports too
        session.create_client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106
        ).close()
    return loader


def _warm_up(session: Any, *, credentials: bool) -> None:
    """Have all files read that making a client needs, so that it does not block the loop."""
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    _ = session.full_config
    # What is not found is looked for anew by each client.
    if credentials and _finished(session.get_credentials) is None:
        raise NoCredentialsError


def _finished(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine: in this thread, with an event loop of its own only where it needs one."""
    coroutine = call()
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    except RuntimeError:  # no running event loop
        pass
    else:
        coroutine.close()
    return asyncio.run(call())


class _Clients:
    """The clients of this process, by their options."""

    def __init__(self) -> None:
        self._left: list[Any] = []
        self._by_options: dict[str, S3Client] = {}
        on_fork(self)

    def after_fork(self) -> None:
        # Kept, not closed: their sockets are the parent's too.
        self._left += self._by_options.values()
        self._by_options = {}

    def get(self, name: str, options: Mapping[str, Any]) -> S3Client:
        """The client of some options, by a name that tells them from others."""
        client = self._by_options.get(name)
        if client is None:
            client = self._by_options.setdefault(name, S3Client(options))
        return client

    @property
    def connected(self) -> bool:
        return any(client.connected for client in list(self._by_options.values()))

    async def close(self) -> None:
        for client in list(self._by_options.values()):
            await client.close()


clients = _Clients()
