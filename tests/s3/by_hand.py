"""Requests that no S3 client would send: signed by one, written by hand."""

import socket
from typing import Any
from urllib.parse import urlsplit

__all__ = ["presigned", "read_to_end"]


def presigned(client: Any, operation: str, **kwargs: Any) -> tuple[tuple[str, int], str]:
    """Sign a request to be sent by hand: where to, and its target."""
    place = urlsplit(client.generate_presigned_url(operation, Params=kwargs))
    assert place.hostname
    assert place.port
    return (place.hostname, place.port), f"{place.path}?{place.query}"


def read_to_end(connection: socket.socket) -> bytes:
    """Read all that comes."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)
