"""HTTP/1.1 as the fault proxy needs it: messages that are cut out of a stream and passed on byte by byte."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["OPERATIONS", "Channel", "Head", "body", "key_of", "operation_of"]

PIECE = 256 * 1024
SECONDS_TO_LEAVE = 5.0
END_OF_HEAD = b"\r\n\r\n"
LINE_END = b"\r\n"

# Operations on an object, by method and by what the query or a header asks for; the first that fits.
OBJECT_OPERATIONS = (
    ("PUT", "partNumber", "x-amz-copy-source", "UploadPartCopy"),
    ("PUT", "partNumber", None, "UploadPart"),
    ("PUT", "tagging", None, "PutObjectTagging"),
    ("PUT", "acl", None, "PutObjectAcl"),
    ("PUT", None, "x-amz-copy-source", "CopyObject"),
    ("PUT", None, None, "PutObject"),
    ("GET", "uploadId", None, "ListParts"),
    ("GET", "tagging", None, "GetObjectTagging"),
    ("GET", "acl", None, "GetObjectAcl"),
    ("GET", "attributes", None, "GetObjectAttributes"),
    ("GET", None, None, "GetObject"),
    ("HEAD", None, None, "HeadObject"),
    ("POST", "uploads", None, "CreateMultipartUpload"),
    ("POST", "uploadId", None, "CompleteMultipartUpload"),
    ("DELETE", "uploadId", None, "AbortMultipartUpload"),
    ("DELETE", "tagging", None, "DeleteObjectTagging"),
    ("DELETE", None, None, "DeleteObject"),
)
BUCKET_OPERATIONS = (
    ("GET", "list-type", None, "ListObjectsV2"),
    ("GET", "uploads", None, "ListMultipartUploads"),
    ("GET", "versions", None, "ListObjectVersions"),
    ("GET", "versioning", None, "GetBucketVersioning"),
    ("GET", "location", None, "GetBucketLocation"),
    ("GET", None, None, "ListObjects"),
    ("HEAD", None, None, "HeadBucket"),
    ("PUT", "versioning", None, "PutBucketVersioning"),
    ("PUT", None, None, "CreateBucket"),
    ("POST", "delete", None, "DeleteObjects"),
    ("DELETE", None, None, "DeleteBucket"),
)
ROOT_OPERATIONS = (("GET", None, None, "ListBuckets"),)
OPERATIONS = frozenset(row[3] for row in (*OBJECT_OPERATIONS, *BUCKET_OPERATIONS, *ROOT_OPERATIONS))


class Channel:
    """One end of a connection: a socket, and the bytes that came after what was asked for."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._early = bytearray()
        self._room = memoryview(bytearray(PIECE))

    async def head(self) -> bytes:
        """Read the lines of a message up to the empty one; nothing if the other side is done."""
        try:
            return await self.until(END_OF_HEAD)
        except EOFError:
            if self._early:
                raise
            return b""

    async def until(self, mark: bytes) -> bytes:
        """Read up to and with a mark."""
        looked = 0
        while (at := self._early.find(mark, looked)) < 0:
            looked = max(0, len(self._early) - len(mark) + 1)
            size = await self._loop.sock_recv_into(self.sock, self._room)
            if not size:
                raise EOFError("the connection ended inside a message")
            self._early += self._room[:size]
        return self._take(at + len(mark))

    async def some(self, limit: int) -> bytes | memoryview:
        """Read what there is, up to a limit, valid until the next read; nothing at the end."""
        if self._early:
            return self._take(limit)
        size = await self._loop.sock_recv_into(self.sock, self._room[:limit])
        return self._room[:size]

    def _take(self, size: int) -> bytes:
        taken = bytes(self._early[:size])
        del self._early[:size]
        return taken

    async def send(self, data: bytes | memoryview) -> None:
        """Write everything."""
        await self._loop.sock_sendall(self.sock, data)

    def usable(self) -> bool:
        """Tell whether a connection that rests is still open, and nothing unasked has come."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._early
        except OSError:
            return False
        return False

    async def finish(self) -> None:
        """End the connection after all that was sent has arrived; unread input would make a RST of it."""
        with contextlib.suppress(OSError, TimeoutError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(SECONDS_TO_LEAVE):
                while await self._loop.sock_recv_into(self.sock, self._room):
                    pass
        self.close()

    def close(self) -> None:
        """End the connection in order, also where a forked process holds it too."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def reset(self) -> None:
        """End the connection with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message, as it came and taken apart."""

    raw: bytes
    first: tuple[str, str, str]
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, raw: bytes) -> "Head":
        """Take a head apart."""
        start, *lines = raw.decode("latin-1").split("\r\n")
        one, _, rest = start.partition(" ")
        two, _, three = rest.partition(" ")
        fields = (line.partition(":") for line in lines if line)
        return cls(raw, (one, two, three), {name.lower(): value.strip() for name, _, value in fields})

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.first[1])

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this message."""
        return self.headers.get("connection", "").lower() == "close"

    @property
    def request_length(self) -> int | Literal["chunked"]:
        """How long the body of a request is."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return "chunked"
        return int(self.headers.get("content-length", "0"))

    def answer_length(self, method: str) -> int | Literal["chunked", "rest"]:
        """How long the body of an answer is; `rest` if only the end of the connection ends it."""
        if method == "HEAD" or self.status in {204, 304}:
            return 0
        if "content-length" in self.headers or "transfer-encoding" in self.headers:
            return self.request_length
        return "rest"


async def body(
    source: Channel, length: int | Literal["chunked", "rest"], piece: int = PIECE
) -> AsyncIterator[bytes | memoryview]:
    """Give the body of a message in pieces, with its chunk marks if it has any.

    Raises:
        EOFError: The connection ended before the body did.
    """
    if isinstance(length, int):
        async for part in _exactly(source, length, piece):
            yield part
    elif length == "rest":
        while part := await source.some(piece):
            yield part
    else:
        while size := int((line := await source.until(LINE_END)).split(b";")[0], 16):
            yield line
            async for part in _exactly(source, size + len(LINE_END), piece):
                yield part
        yield line
        # Trailers, up to an empty line.
        while line != LINE_END:
            line = await source.until(LINE_END)
            yield line


async def _exactly(source: Channel, length: int, piece: int) -> AsyncIterator[bytes | memoryview]:
    left = length
    while left:
        part = await source.some(min(left, piece))
        if not part:
            raise EOFError("the connection ended inside a body")
        left -= len(part)
        yield part


def operation_of(head: Head) -> str:
    """Name what a request asks of S3, as AWS does; the method for what the package has no use for."""
    method, target, _ = head.first
    place = urlsplit(target)
    bucket, _, key = place.path.lstrip("/").partition("/")
    asked = parse_qs(place.query, keep_blank_values=True)
    rows = OBJECT_OPERATIONS if key else BUCKET_OPERATIONS if bucket else ROOT_OPERATIONS
    fits = (
        name
        for wanted, query, header, name in rows
        if wanted == method
        and (query is None or query in asked)
        and (header is None or header in head.headers)
    )
    return next(fits, method)


def key_of(head: Head) -> str:
    """Give the key that a request is about; empty for one about a bucket."""
    path = head.first[1].partition("?")[0]
    return unquote(path.lstrip("/").partition("/")[2])
