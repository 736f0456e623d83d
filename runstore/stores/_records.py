"""Records of a run that are more than a dict."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

__all__ = ["CheckpointRecord", "IterationInfo"]

logger = logging.getLogger("runstore")


@dataclass
class IterationInfo:
    """What one iteration's folder holds.

    Attributes:
        iteration: Its number.
        has_train_rollouts: Whether `train_rollout_summaries.jsonl` is there.
        has_train_logtree: Whether `train_logtree.json` is there.
        eval_labels: The `<label>` of each `eval_<label>_rollout_summaries.jsonl`, sorted.
    """

    iteration: int
    has_train_rollouts: bool = False
    has_train_logtree: bool = False
    eval_labels: list[str] = field(default_factory=list)


@dataclass
class CheckpointRecord:
    """One line of `checkpoints.jsonl`.

    Attributes:
        name: Name of the checkpoint, `final` for the last one of a finished run.
        batch: Batches trained when it was taken.
        epoch: Epochs trained when it was taken.
        final: Whether training ended with it.
        state_path: Where weights and optimizer state lie, to resume from.
        sampler_path: Where the weights for sampling lie.
        extra: Every other key of the line.
    """

    name: str
    batch: int | None = None
    epoch: int | None = None
    final: bool | None = None
    state_path: str | None = None
    sampler_path: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = sorted(self.extra.keys() & _KNOWN_KEYS)
        if known:
            logger.warning(
                "checkpoint %r: dropped %s from extra: they are fields", self.name, ", ".join(known)
            )
            self.extra = {key: value for key, value in self.extra.items() if key not in _KNOWN_KEYS}

    def to_dict(self) -> dict[str, Any]:
        """The line's object: fields that are not `None`, and `extra` beside them."""
        known = {key: getattr(self, key) for key in _KNOWN_KEYS_IN_ORDER}
        return {key: value for key, value in known.items() if value is not None} | self.extra

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """The record of a line's object; keys that are no fields go to `extra`.

        Raises:
            KeyError: There is no `name`.
        """
        known = {key: d.get(key) for key in _KNOWN_KEYS_IN_ORDER if key != "name"}
        return cls(
            d["name"], **known, extra={key: value for key, value in d.items() if key not in _KNOWN_KEYS}
        )

    def has(self, key: str) -> bool:
        """Whether a field is set (not `None`), or an extra key is there."""
        return getattr(self, key) is not None if key in _KNOWN_KEYS else key in self.extra

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field, as it is, or of an extra key, `default` where there is no such key."""
        return getattr(self, key) if key in _KNOWN_KEYS else self.extra.get(key, default)


_KNOWN_KEYS_IN_ORDER = tuple(entry.name for entry in fields(CheckpointRecord) if entry.name != "extra")
_KNOWN_KEYS = frozenset(_KNOWN_KEYS_IN_ORDER)
