"""Credentials are blotted out of what the libraries below log: at level DEBUG, whole requests."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from runstore.remote._errors import without_secrets

__all__ = ["blot_out", "secrets_among", "secrets_in"]

# Shorter ones are examples, and would blot out half of every text.
SHORTEST_SECRET = 4
_OPTIONS = ("key", "secret", "token", "username", "password")
_CLIENT_OPTIONS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_LOGGING = ("aiobotocore", "aiohttp", "botocore", "fsspec", "s3fs")


def secrets_among(values: Iterable[object]) -> frozenset[str]:
    """Those values that are to be shown nowhere."""
    return frozenset(str(value) for value in values if len(str(value or "")) >= SHORTEST_SECRET)


def secrets_in(options: Mapping[str, Any]) -> frozenset[str]:
    """What is to be shown nowhere of the options of a filesystem of S3."""
    inner = options.get("client_kwargs") or {}
    given = [options.get(name) for name in _OPTIONS] + [inner.get(name) for name in _CLIENT_OPTIONS]
    for endpoint in (options.get("endpoint_url"), inner.get("endpoint_url")):
        place = urlsplit(str(endpoint or ""))
        given += [place.username, place.password]
    return secrets_among(given)


class _Redaction(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.secrets: frozenset[str] = frozenset()

    def filter(self, record: logging.LogRecord) -> bool:
        if self.secrets:
            text = record.getMessage()
            blotted = without_secrets(text, self.secrets)
            if blotted != text:
                record.msg, record.args = blotted, ()
        return True


_redaction = _Redaction()


def blot_out(secrets: frozenset[str]) -> None:
    """See to it that these libraries log `***` in place of secrets, as far as they are loaded."""
    _redaction.secrets |= secrets
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LOGGING:
            logging.getLogger(name).addFilter(_redaction)
