"""What the fault proxy is told to do to requests, and what it says about them."""

import asyncio
import http
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Literal

from tests.s3.wire import OPERATIONS, Head, key_of, operation_of

__all__ = ["SECONDS", "Entry", "Fault", "Request", "Rule", "Status", "Which"]

SECONDS = 10.0
ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{0.error}</Code><Message>{0.message}</Message><RequestId>PROXY</RequestId></Error>"""


@dataclass(frozen=True, slots=True)
class Status:
    """An error that the proxy answers by itself, such as `Status(503, "SlowDown")`; nothing is forwarded."""

    code: int
    error: str
    message: str = "The fault proxy says so."
    headers: tuple[tuple[str, str], ...] = ()

    def answer(self, method: str, *, last: bool) -> bytes:
        """Give the answer as S3 writes it; a last one ends the connection."""
        text = "" if method == "HEAD" else ERROR.format(self)
        head = [f"HTTP/1.1 {self.code} {http.HTTPStatus(self.code).phrase}", "x-amz-request-id: PROXY"]
        head += [f"{name}: {value}" for name, value in self.headers]
        head += ["Connection: close"] * last
        head += ["Content-Type: application/xml", f"Content-Length: {len(text.encode())}"]
        return "\r\n".join([*head, "", text]).encode()


# reset: a RST before anything is forwarded. cut: the server acts, and its answer arrives up to half of the
# body (a piece of the first line, if there is no body), then the end. lost_reply: the server acts, and
# nothing of its answer arrives. hang: nothing happens until the rule is released; then the request goes on,
# as out of a slow network, also if its client is gone.
Fault = Status | Literal["reset", "cut", "lost_reply", "hang"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was seen; bytes count heads and bodies, on the client's side."""

    operation: str
    key: str
    method: str
    path: str
    query: str
    time: float
    status: int | None = None
    """What the server (or a rule) answered, whether or not it arrived."""
    fault: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    done: bool = False
    """Whether it is over, with or without an answer."""


class Entry:
    """A request while it happens."""

    def __init__(self, head: Head) -> None:
        """Begin with what its head says."""
        self.method, target, _ = head.first
        self.path, _, self.query = target.partition("?")
        self.operation, self.key, self.time = operation_of(head), key_of(head), time.time()
        self.status: int | None = None
        self.fault: str | None = None
        self.bytes_in, self.bytes_out, self.done = len(head.raw), 0, False

    def frozen(self) -> Request:
        """Give it as it is now."""
        return Request(**{each.name: getattr(self, each.name) for each in fields(Request)})


class Which:
    """Which requests are meant: those of some operations (all by default) on keys that fit a pattern."""

    def __init__(self, operation: str | Collection[str] | None, key: str) -> None:
        """Say which; an operation that does not exist is a mistake."""
        names = [operation] if isinstance(operation, str) else operation
        self.operations = None if names is None else frozenset(names)
        self.key = key
        if unknown := (self.operations or frozenset()) - OPERATIONS:
            raise ValueError(f"no S3 operations: {sorted(unknown)}")

    def fits(self, request: Request | Entry) -> bool:
        """Tell whether a request is meant."""
        named = self.operations is None or request.operation in self.operations
        return named and fnmatchcase(request.key, self.key)

    def __repr__(self) -> str:
        """Name them."""
        return f"{sorted(self.operations or ['any'])} of {self.key}"


@dataclass(eq=False, slots=True)
class Rule:
    """A fault that some requests meet."""

    fault: Fault
    which: Which
    times: int | None
    every: int
    after: int
    changed: threading.Condition
    loop: asyncio.AbstractEventLoop
    seen: int = 0
    """How many requests were meant."""
    hits: int = 0
    """How many it was applied to."""
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def takes(self, entry: Entry) -> bool:
        """Count a request, and tell whether it meets the fault."""
        if not self.which.fits(entry):
            return False
        self.seen += 1
        counted = self.seen - self.after
        if counted <= 0 or counted % self.every or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True

    def wait(self, hits: int = 1, *, seconds: float = SECONDS) -> None:
        """Wait until it has been applied this often."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.hits >= hits, seconds):
                raise TimeoutError(f"{self.fault} was applied {self.hits} times, not {hits}")

    def release(self) -> None:
        """Let the requests go that hang, and those that come."""
        self.loop.call_soon_threadsafe(self.released.set)
