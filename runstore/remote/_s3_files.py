"""Files in a bucket of S3."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Hashable, Mapping
from functools import cached_property
from typing import Any

from runstore.errors import InvalidInputError, StorageIOError
from runstore.remote._errors import error_code, remote_error, without_userinfo
from runstore.remote._files import RemoteFiles, is_wanted
from runstore.remote._s3_client import S3Client, clients
from runstore.remote._s3_commit import S3Committer, metadata_of_new
from runstore.storage._answers import StorageListing, StorageStat

__all__ = ["S3Files", "split_bucket"]

# Of whole objects; more goes up in parts, side by side.
LARGEST_PUT = 64 * 1024 * 1024


def split_bucket(root: str) -> tuple[str, str]:
    """Bucket and prefix of a root; an access point's ARN counts as a bucket."""
    parts = root.strip("/").split("/")
    taken = 2 if root.startswith("arn:") and root.count("/") and ":accesspoint/" in parts[0] + "/" else 1
    return "/".join(parts[:taken]), "/".join(parts[taken:])


class S3Files(RemoteFiles):
    """Objects of one bucket."""

    def __init__(self, bucket: str, options: Mapping[str, Any]) -> None:
        if not bucket:
            msg = "an S3 storage needs a bucket: s3://bucket/prefix"
            raise InvalidInputError(msg)
        self._bucket = bucket
        self._options = dict(options)

    @property
    def _client(self) -> S3Client:
        return clients.get(self._identity, self._options)

    @cached_property
    def _identity(self) -> str:
        # Only a digest: credentials are among the options.
        return hashlib.sha256(json.dumps(self._options, sort_keys=True, default=repr).encode()).hexdigest()

    def identity(self) -> Hashable:
        return ("s3", self._bucket, self._identity)

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}" if key else f"s3://{self._bucket}"

    def store(self) -> str:
        return f"{self._endpoint}#{self._bucket}"

    @cached_property
    def _endpoint(self) -> str:
        """The endpoint, found as botocore finds it; empty for AWS's own."""
        inner = self._options.get("client_kwargs") or {}
        given = self._options.get("endpoint_url") or inner.get("endpoint_url")
        if not given:
            try:
                given = _configured_endpoint(self._options.get("profile"))
            except Exception as error:
                raise remote_error(error, self._client.target(self.url(""))) from error
        if given and "://" not in str(given):
            msg = f"the endpoint {given!r} needs a scheme: http://{given} or https://{given}"
            raise InvalidInputError(msg)
        return without_userinfo(str(given)).rstrip("/")

    def hold(self, holder: object) -> None:
        self._client.hold(holder)

    async def release(self, holder: object) -> None:
        await self._client.release(holder)

    # ---- files

    async def read(self, key: str, offset: int, length: int | None) -> bytes:
        where: dict[str, Any] = {"Bucket": self._bucket, "Key": key}
        if length == 0:
            where["Range"] = "bytes=0-0"  # whether it is there
        elif offset or length is not None:
            where["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        try:
            data = (await self._client.get(self.url(key), **where)).data
        except StorageIOError as error:
            if error_code(error.__cause__) in {"416", "InvalidRange"}:  # at or past the end
                return b""
            raise
        return b"" if length == 0 else data

    async def write(self, key: str, data: bytes) -> None:
        where = {"Bucket": self._bucket, "Key": key}
        if len(data) > LARGEST_PUT:
            await self.committer(key).write_parts(data)
        else:
            await self._client.request(
                "PutObject", self.url(key), **where, Body=data, Metadata=metadata_of_new()
            )

    async def stat(self, key: str) -> StorageStat | None:
        if not key:
            return None
        head = await self._client.head(self.url(key), self._bucket, key)
        if head is None:
            return None
        return StorageStat(int(head["ContentLength"]), head["LastModified"].timestamp())

    async def remove(self, key: str) -> None:
        await self._client.request("DeleteObject", self.url(key), Bucket=self._bucket, Key=key)

    def committer(self, key: str) -> S3Committer:
        return S3Committer(self._client, self._bucket, key, self.url(key))

    # ---- folders

    async def scan(self, key: str) -> StorageListing:
        prefix = f"{key}/" if key else ""
        files: dict[str, StorageStat] = {}
        folders: set[str] = set()
        async for page in self._pages(prefix, Delimiter="/"):
            files |= {name: stat for name, stat in _entries(page, prefix) if name}
            found = [entry["Prefix"].removeprefix(prefix) for entry in page.get("CommonPrefixes", [])]
            folders |= {name.removesuffix("/") for name in found if name != "/"}
        return StorageListing(dict(sorted(files.items())), sorted(folders))

    async def find(self, key: str, starting: str, depth: int | None) -> dict[str, StorageStat]:
        prefix = f"{key}/" if key else ""
        found: dict[str, StorageStat] = {}
        async for page in self._pages(prefix + starting):
            entries = _entries(page, prefix)
            found |= {name: stat for name, stat in entries if is_wanted(name, starting, depth)}
        return dict(sorted(found.items()))

    async def _pages(self, prefix: str, **parameters: str) -> AsyncIterator[dict[str, Any]]:
        """The pages of a listing, 1,000 keys each."""
        token: dict[str, str] = {}
        while True:
            page = await self._client.request(
                "ListObjectsV2", self.url(prefix), Bucket=self._bucket, Prefix=prefix, **parameters, **token
            )
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}


def _configured_endpoint(profile: str | None) -> str:
    """What the environment and the user's configuration say of the endpoint."""
    from botocore.configprovider import ConfiguredEndpointProvider  # noqa: PLC0415
    from botocore.session import Session  # noqa: PLC0415

    session = Session(profile=profile)
    provider = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3")
    return str(provider.provide() or "")


def _entries(page: dict[str, Any], prefix: str) -> list[tuple[str, StorageStat]]:
    return [
        (
            entry["Key"].removeprefix(prefix),
            StorageStat(int(entry["Size"]), entry["LastModified"].timestamp()),
        )
        for entry in page.get("Contents", [])
    ]
