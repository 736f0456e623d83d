"""The laws of a storage as tests, for whoever writes a backend.

Subclass `StorageConformance` in a test module and say how a storage is made and how its files are
reached around it:

    class TestMyStorage(StorageConformance):
        def make_storage(self, folder: Path) -> Storage:
            self.folder = folder
            return MyStorage(folder)

        def raw_write(self, path: str, data: bytes) -> None:
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        def raw_read(self, path: str) -> bytes | None:
            target = self.folder / path
            return target.read_bytes() if target.is_file() else None

pytest and anyio's plugin, which anyio brings along, run the laws: on asyncio and, where it is
installed, on uvloop; with each operation awaited and called as its sync twin inside the running
loop, and with what one colour wrote read by the other. A backend that differs from a law overrides
it with a strict `xfail` that says why, never with a test that does nothing.
"""

from __future__ import annotations

import pytest

# Before the laws are imported: a failing one then shows what it compared.
pytest.register_assert_rewrite(*[f"{__name__}.{laws}" for laws in ("_content", "_names", "_life")])

from runstore.testing._colours import Colours  # noqa: E402
from runstore.testing._content import ContentLaws  # noqa: E402
from runstore.testing._life import LifeLaws  # noqa: E402
from runstore.testing._names import NameLaws  # noqa: E402

__all__ = ["Colours", "StorageConformance"]


@pytest.mark.anyio
class StorageConformance(ContentLaws, NameLaws, LifeLaws):
    """All laws of a storage, each a test; the module's docstring says how to use them."""
