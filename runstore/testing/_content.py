"""Laws about what is in a file: whole files, ranges, appending."""

from __future__ import annotations

import asyncio
import random

import pytest
from anyio.to_thread import run_sync as in_thread

from runstore.errors import InvalidInputError, NotFoundError
from runstore.storage import Storage
from runstore.testing._bench import TEN, Bench
from runstore.testing._colours import Colours

__all__ = ["ContentLaws"]

RANGES = [
    (0, None), (3, None), (10, None), (11, None), (0, 10), (0, 0), (5, 0), (10, 0), (10, 5), (11, 5),
    (5, 100), (5, 2), (9, 1), (1_000_000, 1),
]  # fmt: skip


class ContentLaws(Bench):
    """What is read is what was written."""

    # ---- whole files

    async def test_what_is_written_is_read(self, colours: Colours) -> None:
        """A written file is there at once, for either colour and around the storage."""
        await colours.write("a/b.bin", bytes(range(256)))
        assert await colours.read("a/b.bin") == bytes(range(256))
        await colours.flush()
        assert await in_thread(self.raw_read, "a/b.bin") == bytes(range(256))

    async def test_what_others_wrote_is_read(self, colour: Colours) -> None:
        """A file that came into being around the storage is seen by every operation."""
        await in_thread(self.raw_write, "a/b.bin", TEN)
        assert await colour.read("a/b.bin") == TEN
        assert await colour.exists("a/b.bin")
        assert await colour.list_dir("a") == ["b.bin"]

    async def test_write_replaces_the_whole_file(self, colours: Colours) -> None:
        """Nothing of a longer old content is left."""
        await colours.write("f", b"long old content")
        await colours.write("f", b"new")
        assert await colours.read("f") == b"new"
        assert await colours.list_dir("") == ["f"]

    async def test_an_empty_file_is_a_file(self, colours: Colours) -> None:
        """A file without bytes exists, has size 0 and reads as nothing."""
        await colours.write("empty", b"")
        stat = await colours.stat("empty")
        assert stat is not None
        assert stat.size == 0
        assert await colours.exists("empty")
        assert await colours.read("empty") == b""

    async def test_a_large_file_comes_back_whole(self, colours: Colours) -> None:
        """Five megabytes are written and read in one piece, and in part."""
        data = random.Random(5).randbytes(5_000_000)
        await colours.write("large", data)
        assert await colours.read("large") == data
        assert await colours.read_range("large", 4_000_000, 100) == data[4_000_000:4_000_100]

    async def test_a_missing_file_cannot_be_read(self, colour: Colours) -> None:
        """It is a `NotFoundError` and a `FileNotFoundError`, and the message names the path."""
        for path in ("missing.bin", "no folder/missing.bin"):
            with pytest.raises(NotFoundError, match=r"missing\.bin") as caught:
                await colour.read(path)
            assert isinstance(caught.value, FileNotFoundError)
            with pytest.raises(NotFoundError, match=r"missing\.bin"):
                await colour.read_range(path, 0, 1)

    async def test_replacing_is_atomic(self, storage: Storage) -> None:
        """Whoever reads while a file is rewritten sees the old or the new content, never a mix."""
        contents = [bytes([letter]) * (100_000 + letter) for letter in b"abcd"]
        await storage.awrite("f", contents[0])

        async def rewrite() -> None:
            for turn in range(40):
                await storage.awrite("f", contents[turn % 4])

        rewriting = asyncio.ensure_future(rewrite())
        seen = set()
        while not rewriting.done():
            seen.add(await storage.aread("f"))
        await rewriting
        assert seen <= set(contents)

    # ---- ranges

    async def test_ranges(self, colours: Colours) -> None:
        """A range is what slicing the content gives: nothing at or past the end, no error there."""
        for data in (TEN, b""):
            await colours.write("f", data)
            for offset, length in RANGES:
                expected = data[offset:] if length is None else data[offset : offset + length]
                assert (offset, length, await colours.read_range("f", offset, length)) == (
                    offset,
                    length,
                    expected,
                )

    async def test_negative_ranges_are_refused(self, colour: Colours) -> None:
        """They are an `InvalidInputError`, whether or not there is such a file."""
        await colour.write("f", TEN)
        for path in ("f", "missing"):
            for offset, length in ((-1, None), (-1, 5), (0, -1), (5, -5)):
                with pytest.raises(InvalidInputError):
                    await colour.read_range(path, offset, length)

    # ---- appending

    async def test_append_makes_file_and_folders(self, colours: Colours) -> None:
        """Appending to what is not there makes it."""
        await colours.append("a/b/c.jsonl", b"1\n")
        await colours.append_lines("d/e/f.jsonl", b"2\n")
        await colours.flush()
        assert await in_thread(self.raw_read, "a/b/c.jsonl") == b"1\n"
        assert await in_thread(self.raw_read, "d/e/f.jsonl") == b"2\n"

    async def test_append_adds_at_the_end_and_nothing_else(self, colours: Colours) -> None:
        """Appended bytes follow what was there, as they are."""
        await colours.write("f", b"torn")
        await colours.append("f", b" tail")
        await colours.append("f", b"")
        await colours.append("f", b"\nnext")
        assert await colours.read("f") == b"torn tail\nnext"

    async def test_appended_lines_stay_apart_from_a_torn_tail(self, colours: Colours) -> None:
        """A last line without its newline gets one; where there is none to mend, nothing is added."""
        await colours.append_lines("f", b"1\n")
        await colours.append_lines("f", b"2\n")
        await colours.append("f", b'{"step": 3, "lo')
        await colours.append_lines("f", b"4\n5\n")
        await colours.append_lines("f", b"6\n")
        assert await colours.read("f") == b'1\n2\n{"step": 3, "lo\n4\n5\n6\n'

    async def test_appends_of_one_loop_land_in_call_order(self, storage: Storage) -> None:
        """A hundred appends started at once stand in the file in the order of their calls."""
        lines = [f"{number}\n".encode() for number in range(100)]
        await asyncio.gather(*[storage.aappend("f", line) for line in lines])
        await asyncio.gather(*[storage.aappend_lines("g", line) for line in lines])
        assert storage.read("f") == storage.read("g") == b"".join(lines)

    async def test_a_cancelled_write_never_lands_after_its_successor(self, storage: Storage) -> None:
        """When the cancellation is raised, the write has happened or never will."""
        for turns in range(6):
            first = asyncio.ensure_future(storage.awrite("f", b"first"))
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            await storage.awrite("f", b"second")
            await asyncio.sleep(0.002)
            assert await storage.aread("f") == b"second"

    async def test_a_cancelled_append_is_whole_or_absent(self, storage: Storage) -> None:
        """When the cancellation is raised, the append has happened or never will."""
        for turns in range(6):
            path = f"f{turns}"
            appends = [asyncio.ensure_future(storage.aappend(path, b"%d\n" % n)) for n in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            appends[5].cancel()
            await asyncio.wait([appends[5]])
            found = await storage.aread(path) if await storage.aexists(path) else b""
            await asyncio.gather(*appends[:5], *appends[6:])
            lines = (await storage.aread(path)).splitlines()
            others = [b"%d" % n for n in range(10) if n != 5]
            assert lines == ([*others[:5], b"5", *others[5:]] if b"5\n" in found else others)
