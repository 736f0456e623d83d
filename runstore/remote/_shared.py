"""Connections that several storages share: open as long as one of them uses them."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod

__all__ = ["Shared"]


class Shared(ABC):
    """What is closed when the last of its holders releases it; used later, it opens anew."""

    def __init__(self) -> None:
        self._holders: weakref.WeakSet[object] = weakref.WeakSet()

    def hold(self, holder: object) -> None:
        """Keep connections open until this holder, and all others, have released them or are gone."""
        self._holders.add(holder)

    async def release(self, holder: object) -> None:
        """Close connections when nobody else holds them."""
        self._holders.discard(holder)
        if not self._holders:
            await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""
