"""Laws about which files there are: missing, file or folder, listing, removing, paths."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from runstore.errors import InvalidInputError, NotFoundError
from runstore.storage import AsyncStorage, Storage, StorageListing
from runstore.testing._bench import TEN, Bench
from runstore.testing._colours import Colours

__all__ = ["NameLaws"]

ESCAPING = ["..", "../a", "a/../../b", "./../a", "/", "/etc/passwd", "//a", "a\0b"]
ODD_NAMES = [
    "with space", " leading and trailing ", "ünïcödé", "日本語", "🙂", "e\u0301", "#1", "100%", "%20",
    "a?b=c", "a+b", "a&b", "a;b", "a:b", "a@b", "[x]", "{x}", "'q'", '"q"', "~", ".hidden", "...", "-x",
    "a*b", "a\\b", "tab\there", "new\nline", "\u2028", "x" * 200,
]  # fmt: skip


class NameLaws(Bench):
    """Every file is found under its name, and nothing else is."""

    # ---- missing, file or folder

    async def test_nothing_is_nothing(self, colour: Colours) -> None:
        """A missing path does not exist, has no stat and holds nothing, and finding this makes nothing."""
        for path in ("missing", "no folder/missing"):
            assert not await colour.exists(path)
            assert await colour.stat(path) is None
            assert await colour.list_dir(path) == []
            assert await colour.scan(path) == StorageListing()
            assert await colour.find(path) == {}
        assert await colour.list_dir("") == []

    async def test_a_folder_is_not_a_file(self, colours: Colours) -> None:
        """A folder does not exist as a file, has no stat and cannot be read or removed as one."""
        await colours.write("folder/f", TEN)
        for path in ("folder", ""):
            assert not await colours.exists(path)
            assert await colours.stat(path) is None
            for length in (None, 0):
                with pytest.raises(NotFoundError):
                    await colours.read_range(path, 0, length)
            await colours.remove(path)
        assert await colours.read("folder/f") == TEN

    async def test_a_file_is_not_a_folder(self, colours: Colours) -> None:
        """A file has no children, and what would be below it is missing."""
        await colours.write("f", TEN)
        assert await colours.list_dir("f") == []
        assert await colours.scan("f") == StorageListing()
        assert await colours.find("f") == {}
        assert not await colours.exists("f/below")
        with pytest.raises(NotFoundError):
            await colours.read("f/below")
        await colours.remove("f/below")
        await colours.remove_dir("f")
        assert await colours.read("f") == TEN

    async def test_stat(self, colours: Colours) -> None:
        """Size in bytes, and a time of change near the one of the write."""
        before = time.time()
        await colours.write("f", TEN)
        stat = await colours.stat("f")
        assert stat is not None
        assert stat.size == len(TEN)
        assert abs(stat.mtime - before) < 600
        await colours.append("f", TEN)
        grown = await colours.stat("f")
        assert grown is not None
        assert grown.size == 2 * len(TEN)

    # ---- listing

    async def test_list_dir(self, colours: Colours) -> None:
        """Names of the immediate children, files and folders, sorted, each once."""
        for path in ("b", "a/1", "a/2", "c/d/e", "B", "a.b", "é", "_"):
            await colours.write(path, TEN)
        assert await colours.list_dir("") == ["B", "_", "a", "a.b", "b", "c", "é"]
        assert await colours.list_dir("a") == ["1", "2"]
        assert await colours.list_dir("c") == ["d"]
        assert await colours.list_dir("c/d/") == ["e"]

    async def test_scan_tells_kind_and_size(self, colours: Colours) -> None:
        """It is what its default, made of listing and stat, finds."""
        for size, path in enumerate(("z", "a/1", "m", "b/c/d")):
            await colours.write(path, b"x" * size)
        listing = await colours.scan("")
        assert [(name, stat.size) for name, stat in listing.files.items()] == [("m", 2), ("z", 0)]
        assert listing.folders == ["a", "b"]
        for folder in ("", "a", "b"):
            assert await colours.scan(folder) == await AsyncStorage.ascan(colours.storage, folder)

    async def test_scan_again_sees_every_change(self, colours: Colours) -> None:
        """A scan that is given an earlier listing finds what one without it finds, whatever changed."""
        for path in ("a/1", "m", "z"):
            await colours.write(path, TEN)
        changes: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: colours.append("m", TEN),
            lambda: colours.write("new", TEN),
            lambda: colours.write("b/c", TEN),
            lambda: colours.write("z", b""),
            lambda: colours.append("a/1", TEN),
            lambda: colours.remove("m"),
        ]
        known = await colours.scan("")
        for change in changes:
            known = await colours.scan("", known)
            await change()
            listing = await colours.scan("", known)
            assert listing == await colours.scan("")
            known = listing

    async def test_find_goes_to_any_depth(self, colours: Colours) -> None:
        """Every file below the folder, to any depth or the one asked for; it is what the default finds."""
        paths = ["a", "a.b", "b/c", "b/d/e", "b/d/f/g", "b.c", "iteration_1/x", "iteration_2/x", "i"]
        for path in paths:
            await colours.write(f"run/{path}", TEN)
        await colours.write("other/a", TEN)
        assert list(await colours.find("run")) == sorted(paths)
        for starting in ("", "a", "b", "b/", "b/d", "b/d/", "iteration_", "iteration_2/", "zzz", "b/d/f/g/h"):
            found = await colours.find("run", starting)
            assert list(found) == sorted(p for p in paths if p.startswith(starting))
            assert found == await AsyncStorage.afind(colours.storage, "run", starting)
        for depth in (1, 2, 3):
            found = await colours.find("run", "b", depth)
            assert list(found) == sorted(p for p in paths if p.startswith("b") and p.count("/") < depth)
            assert found == await AsyncStorage.afind(colours.storage, "run", "b", depth)

    # ---- removing

    async def test_remove(self, colours: Colours) -> None:
        """A removed file is gone; one that is missing is no error."""
        await colours.write("a/f", TEN)
        await colours.write("a/g", TEN)
        await colours.remove("a/f")
        await colours.remove("a/f")
        await colours.remove("no folder/f")
        assert await colours.list_dir("a") == ["g"]
        assert await in_thread(self.raw_read, "a/f") is None
        await colours.append("a/f", b"new")
        assert await colours.read("a/f") == b"new"

    async def test_remove_dir(self, colours: Colours) -> None:
        """An empty folder is gone; one that holds something stays, and neither it nor none is an error."""
        await colours.write("a/b/f", TEN)
        await colours.remove_dir("a/b")
        await colours.remove_dir("a")
        await colours.remove_dir("missing")
        assert await colours.read("a/b/f") == TEN
        await colours.remove("a/b/f")
        await colours.remove_dir("a/b")
        await colours.remove_dir("a")
        assert await colours.list_dir("") == []

    # ---- paths

    async def test_a_path_cannot_leave_the_root(self, colour: Colours) -> None:
        """Every operation refuses it as an `InvalidInputError` that says so, before any I/O."""
        operations: list[Callable[[str], Coroutine[Any, Any, object]]] = [
            colour.read,
            lambda path: colour.read_range(path, 0),
            lambda path: colour.write(path, TEN),
            lambda path: colour.append(path, TEN),
            lambda path: colour.append_lines(path, TEN),
            colour.stat,
            colour.exists,
            colour.list_dir,
            colour.scan,
            colour.find,
            colour.remove,
            colour.remove_dir,
            lambda path: colour.watch(path, None, 0.01),
        ]
        for path in ESCAPING:
            for operation in operations:
                with pytest.raises(InvalidInputError, match="escapes"):
                    await operation(path)
            with pytest.raises(InvalidInputError, match="escapes"):
                colour.storage.url(path)
        assert await colour.list_dir("") == []

    async def test_the_root_is_not_a_file(self, colour: Colours) -> None:
        """Writing to the root itself is refused, whether or not anything was written before."""
        for _ in range(2):
            for path in ("", ".", "a/.."):
                for write in (colour.write, colour.append, colour.append_lines):
                    with pytest.raises(InvalidInputError):
                        await write(path, TEN)
            await colour.write("f", TEN)

    async def test_spellings_of_one_path(self, colours: Colours) -> None:
        """Doubled and trailing slashes, `.` and an inner `..` make no other path."""
        await colours.write("a/b", TEN)
        for spelling in ("a//b", "./a/b", "a/./b", "a/b/", "x/../a/b"):
            assert await colours.read(spelling) == TEN
        assert await colours.list_dir("./a/") == ["b"]

    async def test_odd_names(self, colours: Colours) -> None:
        """A name is taken as it is: not decoded, not globbed, not normalised."""
        for number, name in enumerate(ODD_NAMES):
            await colours.write(f"{name}/{name}", b"%d" % number)
            await colours.append(f"{name}/{name}", b"more")
        assert await colours.list_dir("") == sorted(ODD_NAMES)
        assert list(await colours.find("")) == sorted(f"{n}/{n}" for n in ODD_NAMES)
        await colours.flush()
        for number, name in enumerate(ODD_NAMES):
            assert await colours.read_range(f"{name}/{name}", 0) == b"%dmore" % number
            assert await in_thread(self.raw_read, f"{name}/{name}") == b"%dmore" % number
            await colours.remove(f"{name}/{name}")
            assert not await colours.exists(f"{name}/{name}")

    def test_url(self, storage: Storage) -> None:
        """Each path has a URI of its own, below the root's, that is printable text in one line."""
        root = storage.url()
        assert "://" in root
        assert storage.url("a/b") == root.rstrip("/") + "/a/b"
        urls = [storage.url(name) for name in ODD_NAMES]
        assert len(set(urls)) == len(ODD_NAMES)
