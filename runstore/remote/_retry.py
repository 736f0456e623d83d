"""Trying again: with growing, random pauses, for as long as a budget lasts."""

from __future__ import annotations

import random
import time

from runstore.errors import RunStoreError, UnavailableError
from runstore.remote._errors import retry_after
from runstore.storage._patience import still_wanted_after

__all__ = ["BUDGET_SECONDS", "Attempts"]

# How long an operation goes on trying.
BUDGET_SECONDS = 20.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
LONGEST_CONFLICT_PAUSE = 0.5
# Never the generator of `random.random()`: a training's seed decides what that one gives, and pauses in a
# thread of ours would change it. This one has no state that a fork could copy either.
JITTER = random.SystemRandom()
# Each conflict means that another writer got on; only one that always loses gives up.
CONFLICT_SECONDS = 120.0


class Attempts:
    """The attempts at one operation."""

    def __init__(self, seconds: float) -> None:
        """Begin.

        Args:
            seconds: The budget, from now on: no attempt begins after it.
        """
        self._begin = time.monotonic()
        self._seconds = seconds
        self._failures = 0
        self._conflicts = 0

    async def again_after(self, error: RunStoreError) -> None:
        """Wait before the next attempt.

        Raises:
            RunStoreError: `error`, when another attempt cannot help, the budget is spent, or the caller
                has been cancelled.
        """
        pause = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        asked = min(retry_after(error), LONGEST_PAUSE)
        pause = max(pause * JITTER.uniform(0.5, 1.0), asked)
        self._failures += 1
        if not isinstance(error, UnavailableError) or self._spent + pause > self._seconds:
            raise error
        if not await still_wanted_after(pause):
            raise error

    async def again_after_conflict(self, error: RunStoreError) -> None:
        """Wait before the next attempt at what another writer was faster with.

        Raises:
            RunStoreError: `error`, when that went on for too long.
        """
        if self._spent > CONFLICT_SECONDS:
            raise error
        pause = min(0.01 * 2**self._conflicts, LONGEST_CONFLICT_PAUSE)
        self._conflicts += 1
        if not await still_wanted_after(pause * JITTER.random()):
            raise error

    @property
    def _spent(self) -> float:
        return time.monotonic() - self._begin
