"""A proxy between a client and the S3 server that counts, delays, breaks and loses, as networks and AWS do.

It runs in a thread with an event loop of its own, so tests of both colours and child processes use it alike.
Requests pass unchanged, the Host header too, for the client has signed it.

SeaweedFS checks the If-Match of a completed multipart upload and stores the object in two steps, so another
write to the key can slip in between. AWS does both in one. The proxy therefore lets the writes to one key
through one at a time, always.
"""

import asyncio
import contextlib
import socket
import threading
from collections import defaultdict
from collections.abc import Collection, Coroutine
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.s3.faults import SECONDS, Entry, Fault, Request, Rule, Status, Which
from tests.s3.server import free_ports
from tests.s3.wire import PIECE, Channel, Head, body

__all__ = ["Fault", "FaultProxy", "Request", "Rule", "Status"]

WRITES = frozenset({"PutObject", "CopyObject", "DeleteObject", "CompleteMultipartUpload"})


class FaultProxy:
    """A proxy before an S3 server, on a port of its own on the loopback address.

    Attributes:
        latency: Seconds that each request and each answer takes on the way.
        throttle: Bytes a second that fit through, each way, for all connections together; None for all.
        connections: How many connections were accepted.
        errors: What went wrong inside the proxy itself; always empty, unless it has a fault of its own.
    """

    def __init__(self, server: str) -> None:
        """Prepare a proxy before the server at this URL; `start` starts it."""
        place = urlsplit(server)
        self._server = (str(place.hostname), int(place.port or 80))
        self._port = free_ports(1)[0]
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.latency = 0.0
        self.throttle: float | None = None
        self.connections = 0
        self.errors: list[BaseException] = []
        self._changed = threading.Condition()
        self._log: list[Entry] = []
        self._rules: list[Rule] = []
        self._loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        # The rest belongs to the loop.
        self._listener: asyncio.Task[None] | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._idle: list[Channel] = []
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._free_at = {"in": 0.0, "out": 0.0}

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, with its thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def start(self) -> None:
        """Listen, again on the same port after a stop."""
        if not self._thread.is_alive():
            self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        """Be gone, as a server that is down: connections end, new ones are refused."""
        self._call(self._hang_up())

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of arrival."""
        with self._changed:
            return [entry.frozen() for entry in self._log]

    @property
    def bytes_in(self) -> int:
        """What clients sent, heads included."""
        return sum(request.bytes_in for request in self.requests)

    @property
    def bytes_out(self) -> int:
        """What was sent to clients, heads included."""
        return sum(request.bytes_out for request in self.requests)

    def count(self, operation: str | None = None, *, key: str = "*") -> int:
        """Count the requests so far, those that still wait for their answer too."""
        which = Which(operation, key)
        return sum(map(which.fits, self.requests))

    def wait(
        self, operation: str | None = None, *, times: int = 1, key: str = "*", seconds: float = SECONDS
    ) -> None:
        """Wait until so many requests were made and are over."""
        which = Which(operation, key)

        def over() -> bool:
            return sum(entry.done and which.fits(entry) for entry in self._log) >= times

        with self._changed:
            if not self._changed.wait_for(over, seconds):
                seen = [(entry.operation, entry.key, entry.status) for entry in self._log]
                raise TimeoutError(f"waited in vain for {times} requests, {which}; there were {seen}")

    def clear(self) -> None:
        """Forget the requests so far."""
        with self._changed:
            self._log.clear()
            self.connections = 0

    def fail(
        self,
        fault: Fault,
        *,
        operation: str | Collection[str] | None = None,
        key: str = "*",
        times: int | None = None,
        every: int = 1,
        after: int = 0,
    ) -> Rule:
        """Let requests meet a fault; of several rules, the first that takes a request has it.

        Args:
            fault: What happens to them.
            operation: Which operations; all by default.
            key: Which keys, as a pattern of `fnmatch`.
            times: At most so many of them; no end by default.
            every: Only each so-manieth of them.
            after: Let so many of them through first.

        Returns:
            The rule, to wait for, to release and to look at.
        """
        rule = Rule(fault, Which(operation, key), times, every, after, self._changed, self._loop)
        with self._changed:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Drop all rules, latency and throttle; let go what hangs."""
        with self._changed:
            rules, self._rules = self._rules, []
        self.latency, self.throttle = 0.0, None
        for rule in rules:
            rule.release()

    def _call(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _listen(self) -> None:
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self._port), backlog=512)
            listener.settimeout(0)
            self._listener = self._loop.create_task(self._accept(listener))

    async def _hang_up(self) -> None:
        tasks = [*self._clients, *([self._listener] if self._listener else [])]
        self._listener = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._idle:
            self._idle.pop().close()

    async def _accept(self, listener: socket.socket) -> None:
        try:
            while True:
                accepted, _ = await self._loop.sock_accept(listener)
                self.connections += 1
                task = self._loop.create_task(self._serve(Channel(accepted)))
                self._clients.add(task)
                task.add_done_callback(self._clients.discard)
        finally:
            # Closing alone would leave it listening where a forked process holds it too.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    async def _serve(self, client: Channel) -> None:
        """Serve one connection, request by request."""
        try:
            while raw := await client.head():
                request = Head.parse(raw)
                entry = Entry(request)
                rule = self._noted(entry)
                try:
                    more = await self._handle(client, request, entry, rule)
                finally:
                    self._over(entry)
                if not more:
                    await client.finish()
                    break
        except (OSError, EOFError):
            pass  # one side left
        except Exception as error:  # noqa: BLE001 - whoever uses the proxy shows them
            self.errors.append(error)
        finally:
            client.close()

    def _noted(self, entry: Entry) -> Rule | None:
        """Log a request, and find the rule that it meets."""
        with self._changed:
            self._log.append(entry)
            rule = next((rule for rule in self._rules if rule.takes(entry)), None)
            if rule:
                entry.fault = rule.fault.error if isinstance(rule.fault, Status) else rule.fault
            self._changed.notify_all()
        return rule

    def _over(self, entry: Entry) -> None:
        with self._changed:
            entry.done = True
            self._changed.notify_all()

    async def _handle(self, client: Channel, request: Head, entry: Entry, rule: Rule | None) -> bool:
        """Answer one request, and tell whether the connection goes on."""
        await asyncio.sleep(self.latency)
        fault = rule.fault if rule else None
        if isinstance(fault, Status):
            return await self._refuse(client, request, entry, fault)
        if fault == "reset":
            client.reset()
            return False
        if rule and fault == "hang":
            await rule.released.wait()
        return await self._forward(client, request, entry, fault)

    async def _refuse(self, client: Channel, request: Head, entry: Entry, fault: Status) -> bool:
        # A client that waits for permission to send its body will not send it now.
        unsent = "expect" in request.headers
        if not unsent:
            async for part in body(client, request.request_length):
                entry.bytes_in += len(part)
        await asyncio.sleep(self.latency)
        entry.status = fault.code
        await self._deliver(client, entry, fault.answer(entry.method, last=unsent))
        return not unsent

    async def _forward(self, client: Channel, request: Head, entry: Entry, fault: str | None) -> bool:
        upstream = await self._connected()
        clean = False
        try:
            turn = self._turns[unquote(entry.path)] if entry.operation in WRITES else contextlib.nullcontext()
            async with turn:
                answer, complete = await self._ask(client, upstream, request, entry)
                length = answer.answer_length(entry.method)
                whole = entry.operation in WRITES or fault in {"cut", "lost_reply"}
                content = b"".join([bytes(part) async for part in body(upstream, length)]) if whole else b""
            if fault != "lost_reply":
                await asyncio.sleep(self.latency)
            if fault == "cut":
                # Not half of the head: clients take an answer for whole that ends among its headers.
                half = len(answer.raw) + len(content) // 2 if content else len("HTTP/1.")
                await self._deliver(client, entry, (answer.raw + content)[:half])
            elif fault != "lost_reply":
                await self._deliver(client, entry, answer.raw + content)
                if not whole:
                    async for part in body(upstream, length, self._piece()):
                        await self._deliver(client, entry, part)
            clean = complete and not (answer.closes or request.closes or length == "rest")
        finally:
            if clean:
                self._idle.append(upstream)
            else:
                upstream.close()
        return clean and fault not in {"cut", "lost_reply"}

    async def _connected(self) -> Channel:
        """Give a connection to the server, one that rests if there is one."""
        while self._idle:
            channel = self._idle.pop()
            if channel.usable():
                return channel
            channel.close()
        sock = socket.socket()
        sock.settimeout(0)
        try:
            await self._loop.sock_connect(sock, self._server)
        except BaseException:
            sock.close()
            raise
        return Channel(sock)

    async def _ask(
        self, client: Channel, upstream: Channel, request: Head, entry: Entry
    ) -> tuple[Head, bool]:
        """Pass a request on and give the head of the answer; and whether all of the request was read.

        The server may answer before it has the whole body, or want to be waited for.
        """
        await upstream.send(request.raw)
        sending = self._loop.create_task(self._pass_body(client, upstream, request, entry))
        answering = self._loop.create_task(self._answer(client, upstream, entry))
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            answer, continued = await answering
            entry.status = answer.status
            if "expect" in request.headers and not continued:
                return answer, sending.done()
            await sending
            return answer, True
        finally:
            sending.cancel()
            answering.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _pass_body(self, client: Channel, upstream: Channel, request: Head, entry: Entry) -> None:
        """Pass the body on; one that the server no longer wants is read all the same."""
        wanted = True
        async for part in body(client, request.request_length, self._piece()):
            entry.bytes_in += len(part)
            await self._pace("in", len(part))
            if wanted:
                try:
                    await upstream.send(part)
                except OSError:
                    wanted = False

    async def _answer(self, client: Channel, upstream: Channel, entry: Entry) -> tuple[Head, bool]:
        """Give the head of the final answer, and whether the client was told to continue before."""
        continued = False
        while raw := await upstream.head():
            head = Head.parse(raw)
            if head.status >= 200:
                return head, continued
            await self._deliver(client, entry, raw)
            continued = True
        raise EOFError("the server closed the connection without an answer")

    async def _deliver(self, client: Channel, entry: Entry, data: bytes | memoryview) -> None:
        # Counted first: whoever has the answer finds it counted.
        entry.bytes_out += len(data)
        await self._pace("out", len(data))
        await client.send(data)

    def _piece(self) -> int:
        return PIECE if self.throttle is None else min(PIECE, max(512, int(self.throttle / 20)))

    async def _pace(self, way: str, size: int) -> None:
        if self.throttle is not None:
            now = self._loop.time()
            self._free_at[way] = max(now, self._free_at[way]) + size / self.throttle
            await asyncio.sleep(self._free_at[way] - now)
