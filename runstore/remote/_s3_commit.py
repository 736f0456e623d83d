"""Appending to an object of S3: compare-and-swap, each segment exactly once.

S3 has no append. Below 5 MiB the whole object is sent anew, from memory; above, the server copies what
is there and only the new bytes are sent, as the last part of a multipart upload. Both succeed only if
the object is still the one they were made from. An answer may be lost, and clients resend requests by
themselves, so that a refusal can be of what has succeeded: after anything but success the object's
metadata is asked, which names the segments in it.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from runstore.errors import BucketWarning, NotFoundError, RunStoreError, UnavailableError
from runstore.remote._appended import Committer
from runstore.remote._errors import is_conflict, warn
from runstore.remote._marks import METADATA_KEY, Marks
from runstore.remote._retry import Attempts
from runstore.remote._s3_client import S3Client
from runstore.remote._segment import Base, Segment, joined
from runstore.remote._spool import Spool
from runstore.storage._bridge import gather, in_thread

__all__ = ["S3Committer", "metadata_of_new"]

# The least that S3 takes for a part that is not the last one.
SMALLEST_PART = 5 * 1024 * 1024
DATA_PART = 32 * 1024 * 1024
COPY_PART, LARGEST_COPY_PART, COPIES_AT_ONCE = 64 * 1024 * 1024, 512 * 1024 * 1024, 8
# Contents of small objects that are kept in memory, of all objects together.
KEPT_CONTENTS = 64 * 1024 * 1024
# Repeated with every commit, which would reset them.
_REPEATED = (
    "BucketKeyEnabled",
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Expires",
    "SSEKMSKeyId",
    "ServerSideEncryption",
    "StorageClass",
    "WebsiteRedirectLocation",
)


def metadata_of_new() -> dict[str, str]:
    """The metadata of an object that is written whole."""
    return {METADATA_KEY: str(Marks.new())}


@dataclass(frozen=True, slots=True)
class _Object:
    """An object as it was when last seen."""

    etag: str | None = None
    """`None` when there is no object."""
    size: int = 0
    content: bytes | None = b""
    """All of it, where it is small."""
    last: bytes | None = b""
    """Its last byte, `b""` when it is empty, `None` when not known."""
    marks: Marks = field(default_factory=Marks)
    kept: dict[str, Any] = field(default_factory=dict)
    """Headers and metadata that go on with it."""

    @property
    def base(self) -> Base:
        return Base(self.marks.generation, self.size)

    @property
    def condition(self) -> dict[str, str]:
        return {"IfNoneMatch": "*"} if self.etag is None else {"IfMatch": self.etag}

    def described(self, marks: Marks) -> dict[str, Any]:
        """The parameters that give its successor the same headers, and its marks."""
        metadata = {**self.kept.get("Metadata", {}), METADATA_KEY: str(marks)}
        return {**self.kept, "Metadata": metadata}


class _Contents:
    """Bounds the contents kept in memory: those used longest ago are forgotten, and read again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[S3Committer, int] = OrderedDict()

    def keep(self, committer: S3Committer, size: int) -> None:
        self._kept[committer] = size
        self._kept.move_to_end(committer)
        while sum(self._kept.values()) > KEPT_CONTENTS and len(self._kept) > 1:
            oldest, _ = self._kept.popitem(last=False)
            oldest.forget_content()

    def drop(self, committer: S3Committer) -> None:
        self._kept.pop(committer, None)


_contents = _Contents()


class S3Committer(Committer):
    """Appends segments to one object; its owner sees to it that one commit runs at a time."""

    def __init__(self, client: S3Client, bucket: str, key: str, url: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._where = {"Bucket": bucket, "Key": key}
        self._url = url
        self._object: _Object | None = None
        self._unfinished: list[str] = []  # uploads that could not be aborted

    def forget(self) -> None:
        self._object = None
        _contents.drop(self)

    def forget_content(self) -> None:
        """Drop the object's bytes; the next commit reads them again."""
        if self._object is not None:
            self._object = replace(self._object, content=None)

    async def prepare(self) -> None:
        await self._client.prepare(self._url)

    async def learn(self) -> Base:
        return (await self._known()).base

    async def _known(self) -> _Object:
        return self._object or self._know(await self._look())

    async def commit(self, segments: Sequence[Segment], spool: Spool) -> Base:
        attempts = Attempts(self._client.budget)
        while True:
            now = await self._known()
            fresh = [segment for segment in segments if not now.marks.holds(segment.file)]
            fresh = await self.without_stale(fresh, now.base, spool)
            if not fresh:
                return now.base
            begin = time.monotonic()
            try:
                before = await self._read(now, fresh)
                self._know(await self._append(before, fresh, spool))
                self.took = time.monotonic() - begin
                await self.abort(self._unfinished)
                await self._client.learn_conditions(self._url, self._bucket, self._key)
            except RunStoreError as error:
                self.forget()
                if isinstance(error, NotFoundError) or is_conflict(error):
                    await attempts.again_after_conflict(error)
                else:
                    await attempts.again_after(error)
            except BaseException:
                self.forget()
                raise

    # ---- what is there

    def _know(self, found: _Object) -> _Object:
        self._object = found
        if found.content:
            _contents.keep(self, len(found.content))
        else:
            _contents.drop(self)
        return found

    async def _look(self) -> _Object:
        head = await self._client.head(self._url, self._bucket, self._key)
        if head is None:
            return _Object()
        metadata = head.get("Metadata", {})
        kept = {name: head[name] for name in _REPEATED if head.get(name)}
        kept["Metadata"] = {name: value for name, value in metadata.items() if name != METADATA_KEY}
        size = int(head["ContentLength"])
        known = None if size else b""
        return _Object(head["ETag"], size, known, known, Marks.parse(metadata), kept)

    async def _read(self, found: _Object, segments: Sequence[Segment]) -> _Object:
        """The object with as much of its bytes as appending to it needs."""
        if found.size < SMALLEST_PART:
            if found.content is None:
                content = await self._bytes(found, 0)
                return replace(found, content=content, last=content[-1:])
        elif found.last is None and any(frame.apart for segment in segments for frame in segment.frames):
            return replace(found, last=await self._bytes(found, found.size - 1))
        return found

    async def _bytes(self, found: _Object, start: int) -> bytes:
        """The object from `start` on, and nothing else: what is sent anew must be what was there."""
        got = await self._client.get(self._url, **self._where, Range=f"bytes={start}-", IfMatch=found.etag)
        if got.answer.get("ETag") != found.etag or len(got.data) != found.size - start:
            msg = f"The server sent {len(got.data)} bytes of another object than the one asked for"
            raise UnavailableError(errno.EIO, msg, self._url)
        return got.data

    # ---- appending

    async def _append(self, before: _Object, segments: Sequence[Segment], spool: Spool) -> _Object:
        data = joined(segments, before.last if before.last is not None else b"")
        marks = before.marks.after(segments)
        size = before.size + len(data)
        small = before.content is not None and size < SMALLEST_PART + DATA_PART
        if small:
            content = (before.content or b"") + data
            answer = await self._put(before, content, marks)
        else:
            answer = await self._compose(before, data, marks, spool, segments[-1])
            content = b""
        if not answer.get("ETag"):
            msg = "The server did not say what it has stored"
            raise UnavailableError(errno.EIO, msg, self._url)
        _warn_if_versioned(answer, self._bucket, self._url)
        kept = content if small and size < SMALLEST_PART else None
        return replace(
            before, etag=answer["ETag"], size=size, content=kept, last=data[-1:] or before.last, marks=marks
        )

    async def _put(self, before: _Object, content: bytes, marks: Marks) -> dict[str, Any]:
        described = before.described(marks)
        return await self._client.once(
            "PutObject", self._url, **self._where, Body=content, **described, **before.condition
        )

    async def _compose(
        self, before: _Object, data: bytes, marks: Marks, spool: Spool, newest: Segment
    ) -> dict[str, Any]:
        """A multipart upload: what is there copied by the server, then the new bytes."""
        async with self._upload(before.described(marks)) as upload:
            await in_thread(spool.note_attempt, newest, upload["UploadId"])
            parts = await self._send_parts(before, data, upload)
            return await self._client.once(
                "CompleteMultipartUpload", self._url, **upload, **parts, **before.condition
            )

    async def write_parts(self, data: bytes) -> None:
        """Replace the object by a multipart upload."""
        async with self._upload({"Metadata": metadata_of_new()}) as upload:
            parts = await self._send_parts(_Object(), data, upload)
            await self._client.request("CompleteMultipartUpload", self._url, **upload, **parts)

    @asynccontextmanager
    async def _upload(self, described: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
        """The parameters of a multipart upload, which is aborted when it fails."""
        begun = await self._client.request("CreateMultipartUpload", self._url, **self._where, **described)
        try:
            yield {**self._where, "UploadId": begun["UploadId"]}
        except BaseException:
            await self.abort([begun["UploadId"]])
            raise

    async def _send_parts(self, before: _Object, data: bytes, upload: dict[str, str]) -> dict[str, Any]:
        """Send all parts; what completes the upload."""
        if before.content is not None:
            data, copies = before.content + data, []
        else:
            copies = _spans(before.size)
        calls = [
            partial(self._copy_part, before, span, number, upload) for number, span in enumerate(copies, 1)
        ]
        chunks = [data[start : start + DATA_PART] for start in range(0, len(data), DATA_PART)]
        calls += [
            partial(self._send_part, chunk, number, upload)
            for number, chunk in enumerate(chunks, len(copies) + 1)
        ]
        return {"MultipartUpload": {"Parts": await gather(calls, COPIES_AT_ONCE)}}

    async def _copy_part(
        self, before: _Object, span: tuple[int, int], number: int, upload: dict[str, str]
    ) -> dict[str, Any]:
        answer = await self._client.request(
            "UploadPartCopy",
            self._url,
            **upload,
            PartNumber=number,
            CopySource=self._where,
            CopySourceIfMatch=before.etag,
            CopySourceRange=f"bytes={span[0]}-{span[1] - 1}",
        )
        return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

    async def _send_part(self, chunk: bytes, number: int, upload: dict[str, str]) -> dict[str, Any]:
        answer = await self._client.request("UploadPart", self._url, **upload, PartNumber=number, Body=chunk)
        sums = {name: value for name, value in answer.items() if name.startswith("Checksum") and value}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    async def abort(self, attempts: Sequence[str]) -> None:
        """Free what multipart uploads have stored that nobody completes; as far as rights go."""
        for upload_id in list(attempts):
            try:
                await self._client.once("AbortMultipartUpload", self._url, **self._where, UploadId=upload_id)
            except UnavailableError:
                if upload_id not in self._unfinished:
                    self._unfinished.append(upload_id)  # after the next commit
                continue
            except RunStoreError:
                pass  # it is gone, or there is no right to it
            if upload_id in self._unfinished:
                self._unfinished.remove(upload_id)


def _spans(size: int) -> list[tuple[int, int]]:
    """An object cut evenly into the parts that the server copies, as starts and ends."""
    count = max(min(size // COPY_PART, COPIES_AT_ONCE), -(-size // LARGEST_COPY_PART), 1)
    cuts = [size * index // count for index in range(count + 1)]
    return list(pairwise(cuts))


_versioned: set[str] = set()


def _warn_if_versioned(answer: dict[str, Any], bucket: str, url: str) -> None:
    if answer.get("VersionId") not in {None, "null"} and bucket not in _versioned:
        _versioned.add(bucket)
        warn(
            f"bucket {bucket!r} keeps versions: every flush of {url} stores the whole object once more; "
            "set a lifecycle rule for noncurrent versions, or a longer flush_interval",
            BucketWarning,
        )
