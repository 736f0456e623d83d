"""What is known of a run without reading its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["RunInfo", "Status", "TrainingType", "training_type_of"]

Status = Literal["running", "completed", "idle"]
TrainingType = Literal["rl", "sl", "dpo"]

_TYPE_BY_KEY: dict[str, TrainingType] = {"dpo_beta": "dpo", "loss_fn": "rl", "num_epochs": "sl"}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run without reading its metrics.

    Attributes:
        run_id: Its name in the registry.
        prefix: Its folder in its storage.
        has_config: Whether `config.json` is there.
        has_metrics: Whether `metrics.jsonl` is there.
        has_checkpoints: Whether `checkpoints.jsonl` is there.
        has_timing: Whether `timing_spans.jsonl` is there.
        iteration_count: How many iteration folders there are.
        status: `completed` with a final checkpoint; `running` when a file changed within the
            registry's window; else `idle`.
        last_updated: Time of the newest change seen, in seconds since the epoch; `None` without files.
        training_type: `rl`, `sl` or `dpo`, as the configuration tells; `None` when it does not.
        newest_file: The file of that change, relative to the run's folder.
        checked_at: When the run was looked at, in seconds since the epoch.
        error: What could not be read, `None` for a sound run.
    """

    run_id: str
    prefix: str
    has_config: bool
    has_metrics: bool
    has_checkpoints: bool
    has_timing: bool
    iteration_count: int
    status: Status
    last_updated: float | None
    training_type: TrainingType | None
    newest_file: str | None = None
    checked_at: float = 0.0
    error: str | None = None

    @property
    def age(self) -> float | None:
        """Seconds from the newest change to the look at it; 0.0 where the storage's clock is ahead."""
        return None if self.last_updated is None else max(self.checked_at - self.last_updated, 0.0)

    @property
    def status_reason(self) -> str:
        """What decided the status: a final checkpoint, or the newest file and its age."""
        if self.status == "completed":
            return "it has a final checkpoint"
        if self.age is None:
            return "it could not be read" if self.error else "it has no files"
        return f"{self.newest_file} changed {self.age:.0f} s before it was looked at"


def training_type_of(config: dict[str, Any]) -> TrainingType | None:
    """The kind of training that a configuration describes, `None` where it does not say."""
    for key, kind in _TYPE_BY_KEY.items():
        if key in config:
            return kind
    builder = config.get("dataset_builder")
    name = str(builder.get("__type__", "")) if isinstance(builder, dict) else ""
    if "RL" in name:
        return "rl"
    return "sl" if "Supervised" in name or "SL" in name else None
