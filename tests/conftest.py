"""What every test runs under: both event loops, proof that nothing blocks them, Hypothesis profiles."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import HealthCheck, settings

from runstore.storage import _bridge

settings.register_profile("default", max_examples=50, deadline=None)
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))

# What blockbuster does not watch by itself, and files are read and written with.
WATCHED = ("open", "pread", "fstat", "fsync", "utime")


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Every async test runs on the standard event loop and on uvloop."""
    return request.param


@pytest.fixture
def no_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chance to give the loop a turn is taken, however little work came before."""
    monkeypatch.setattr(_bridge, "STRETCH_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def blocking_detection() -> Iterator[None]:
    """A blocking call of the package on a running event loop fails the test.

    One exception: sync twins that are called on purpose inside a loop. `drive` runs them in place,
    `call_on_io_loop` waits for the I/O loop, and one of local files does without either.
    """
    blockbuster = BlockBuster(scanned_modules=["runstore"])
    for name in WATCHED:
        blockbuster.functions[f"os.{name}"] = BlockBusterFunction(os, name, scanned_modules=["runstore"])
    for function in blockbuster.functions.values():
        function.can_block_in("storage/_bridge.py", {"drive", "call_on_io_loop"})
        function.can_block_in("storage/_local.py", {"append_lines"})
    blockbuster.activate()
    yield
    blockbuster.deactivate()
