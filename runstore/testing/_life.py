"""Laws about a storage's life: changes, closing, pickling, event loops, threads, processes."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from anyio.to_thread import run_sync as in_thread

from runstore.errors import NotFoundError
from runstore.storage import AsyncStorage, Storage
from runstore.testing._bench import TEN, Bench
from runstore.testing._colours import Colours

__all__ = ["LifeLaws"]

# A pickled copy is used in a process that shares nothing with this one.
CHILD = """
import pickle, sys
sys.path.extend(pickle.load(sys.stdin.buffer))
storage = pickle.load(sys.stdin.buffer)
print(storage.read("from parent").decode())
storage.append("from child", b"hello parent")
storage.close()
"""


class LifeLaws(Bench):
    """A storage works wherever it is used, and for as long."""

    # ---- changes

    async def test_watch_sees_a_change(self, colours: Colours) -> None:
        """After a change of the file, its coming and its going too, the next token is another one."""
        seen = await colours.watch("a/f", None, 30)
        for change in (colours.write("a/f", b"1"), colours.append("a/f", b"2"), colours.remove("a/f")):
            await change
            before, begin = seen, time.monotonic()
            while seen == before:
                assert time.monotonic() - begin < 20
                seen = await colours.watch("a/f", seen, 0.05)

    async def test_watch_ends_in_time(self, colour: Colours) -> None:
        """The first call returns at once, and one without a change when its time is over."""
        await colour.write("f", TEN)
        begin = time.monotonic()
        seen = await colour.watch("f", None, 30)
        await colour.watch("f", seen, 0.05)
        assert time.monotonic() - begin < 10

    # ---- life

    def test_is_a_storage(self, storage: Storage) -> None:
        """It is an instance of both names of the contract."""
        assert isinstance(storage, Storage)
        assert isinstance(storage, AsyncStorage)

    async def test_close_is_idempotent_and_no_end(self, colours: Colours) -> None:
        """A closed storage may be closed again and used again, and closing loses nothing."""
        await colours.append("f", b"1\n")
        for _ in range(2):
            await colours.close()
        assert await in_thread(self.raw_read, "f") == b"1\n"
        await colours.append("f", b"2\n")
        assert await colours.read("f") == b"1\n2\n"
        await colours.close()
        assert await in_thread(self.raw_read, "f") == b"1\n2\n"

    async def test_leaving_with_closes(self, storage: Storage) -> None:
        """Both forms of `with` give the storage itself and leave everything written behind them."""
        async with storage as same:
            assert same is storage
            await storage.aappend("f", b"1\n")
        with storage as same:
            assert same is storage
            storage.append("f", b"2\n")
        assert await in_thread(self.raw_read, "f") == b"1\n2\n"

    async def test_with_does_not_hide_an_exception(self, storage: Storage) -> None:
        """An exception passes through both forms of `with`, and what was appended stays."""

        async def fail_async() -> None:
            async with storage:
                await storage.aappend("f", b"1\n")
                raise ZeroDivisionError

        def fail() -> None:
            with storage:
                storage.append("f", b"2\n")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_async()
        with pytest.raises(ZeroDivisionError):
            fail()
        assert await in_thread(self.raw_read, "f") == b"1\n2\n"

    async def test_a_pickled_copy_is_the_same_storage(self, colours: Colours) -> None:
        """It sees and makes the same files, and closing it leaves the original open."""
        await colours.write("f", TEN)
        copy: Storage = pickle.loads(pickle.dumps(colours.storage))
        assert copy.url("f") == colours.storage.url("f")
        assert await copy.aread("f") == copy.read("f") == TEN
        await copy.aappend("f", b"more")
        await copy.aclose()
        assert await colours.read("f") == TEN + b"more"

    def test_a_pickled_copy_works_in_another_process(self, storage: Storage) -> None:
        """A new process reads what this one wrote, and the other way."""
        storage.append("from parent", b"hello child")
        storage.flush()
        sent = pickle.dumps(list(self.import_paths)) + pickle.dumps(storage)
        child = subprocess.run(
            [sys.executable, "-c", CHILD], input=sent, capture_output=True, check=False, timeout=50
        )
        assert (child.returncode, child.stderr) == (0, b"")
        assert child.stdout == b"hello child\n"
        assert storage.read("from child") == b"hello parent"

    # ---- loops and threads

    def test_sync_calls_work_without_a_loop(self, storage: Storage) -> None:
        """A plain script writes, lists, reads and removes."""
        storage.write("a/f", TEN)
        storage.append("a/f", b"more")
        assert storage.list_dir("a") == ["f"]
        assert storage.read("a/f") == TEN + b"more"
        storage.remove("a/f")
        assert not storage.exists("a/f")

    def test_one_storage_outlives_event_loops(self, storage: Storage) -> None:
        """It works before, between and after event loops, and in each of them."""
        storage.append("f", b"0")
        for letter in (b"1", b"2", b"3"):
            asyncio.run(storage.aappend("f", letter))
            storage.append("f", b"-")
        assert asyncio.run(storage.aread("f")) == storage.read("f") == b"01-2-3-"

    def test_two_loops_at_once(self, storage: Storage) -> None:
        """Two threads, each with an event loop of its own, share a storage."""
        both = threading.Barrier(2)

        async def work(name: str) -> None:
            await asyncio.gather(*[storage.aappend_lines(name, b"%d\n" % n) for n in range(20)])
            await storage.aappend_lines("shared", name.encode() + b"\n")

        def run(name: str) -> None:
            both.wait(30)
            asyncio.run(work(name))

        _in_threads([partial(run, name) for name in ("a", "b")])
        for name in ("a", "b"):
            assert storage.read(name) == b"".join(b"%d\n" % n for n in range(20))
        assert sorted(storage.read("shared").split()) == [b"a", b"b"]

    def test_many_threads(self, storage: Storage) -> None:
        """Sync calls of eight threads on one storage lose and mix nothing."""
        lines = [f"{thread} {number} {'x' * 300}\n" for thread in range(8) for number in range(12)]

        def work(thread: int) -> None:
            for number in range(12):
                storage.append_lines("f", lines[thread * 12 + number].encode())
                storage.write(f"{thread}/{number}", TEN)

        _in_threads([partial(work, thread) for thread in range(8)])
        assert sorted(storage.read("f").decode().splitlines(keepends=True)) == sorted(lines)
        assert len(storage.find("")) == 1 + 8 * 12

    async def test_many_operations_at_once(self, storage: Storage) -> None:
        """A hundred operations under way on one loop each get their own result."""
        numbers = range(100)
        await asyncio.gather(*[storage.awrite(f"d/{number}", b"%d" % number) for number in numbers])
        read = await asyncio.gather(*[storage.aread(f"d/{number}") for number in numbers])
        assert read == [b"%d" % number for number in numbers]
        missing = [storage.aread("missing" if number % 2 else f"d/{number}") for number in numbers]
        outcomes = await asyncio.gather(*missing, return_exceptions=True)
        assert [isinstance(outcome, NotFoundError) for outcome in outcomes] == [n % 2 == 1 for n in numbers]


def _in_threads(calls: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(calls)) as threads:
        for future in [threads.submit(call) for call in calls]:
            future.result(50)
