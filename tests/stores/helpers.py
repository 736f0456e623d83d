"""Calling a method in one of its two colours, and looking at a run's files around the store."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


class Call:
    """Calls the async method that it is given, or its sync twin in a thread without a loop."""

    def __init__(self, colour: str) -> None:
        self.colour = colour

    async def __call__(
        self, method: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.colour == "async":
            return await method(*args, **kwargs)
        twin: Callable[P, T] = twin_of(method)
        return await anyio.to_thread.run_sync(lambda: twin(*args, **kwargs))


def twin_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """The sync twin of a bound async method."""
    owner, name = getattr(method, "__self__", None), method.__name__
    assert name.startswith("a"), name
    twin: Callable[..., Any] = getattr(owner, name[1:])
    return twin


class RunFolder(os.PathLike[str]):
    """The folder of a run, as another program sees it: raw bytes, around the store."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __fspath__(self) -> str:
        return str(self.root)

    def put(self, name: str, data: bytes) -> Path:
        """Write a file with its folders."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def get(self, name: str) -> bytes:
        """The bytes of a file."""
        return (self.root / name).read_bytes()

    def files(self) -> dict[str, bytes]:
        """Every file below the folder, with its bytes."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
        }

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.root.exists()


async def turns_of_the_loop(work: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """What the work returns, and how many turns the loop had meanwhile."""
    turns, finished = 0, False

    async def watch() -> None:
        nonlocal turns
        while not finished:
            turns += 1
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    try:
        result = await work
    finally:
        finished = True
        await watcher
    return result, turns
