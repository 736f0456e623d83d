"""Records of an evaluation: a run, its results, the trajectories behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Self

from runstore.errors import InvalidInputError

__all__ = ["BenchmarkResult", "RunMetadata", "StoredTrajectory", "StoredTurn", "fields_of"]


class _Record:
    """A dataclass that is stored as one JSON object."""

    def to_dict(self) -> dict[str, Any]:
        """The object that is stored."""
        row: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        return row

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """The record of a stored object; unknown keys are ignored.

        Raises:
            TypeError: A field without a default is missing.
        """
        known = {entry.name for entry in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
        return cls(**{key: value for key, value in d.items() if key in known})


@dataclass
class RunMetadata(_Record):
    """One evaluation run.

    Attributes:
        run_id: Its name.
        model_name: The model that was evaluated.
        checkpoint_path: Where its weights lie, `None` for the base model.
        checkpoint_name: Name of the checkpoint, `None` for the base model.
        benchmarks: Names of the benchmarks it covers.
        timestamp: When it was created, ISO 8601.
        config: How it was run.
        scores: Score by benchmark, collected when the run is finalised.
    """

    run_id: str
    model_name: str
    checkpoint_path: str | None
    checkpoint_name: str | None
    benchmarks: list[str]
    timestamp: str
    config: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class BenchmarkResult(_Record):
    """What a benchmark gave, over all its examples.

    Attributes:
        name: Name of the benchmark.
        score: `num_correct / num_examples`, errors and truncations counting as wrong.
        num_examples: Examples evaluated.
        num_correct: Examples with a positive reward.
        num_errors: Examples that failed to run.
        num_truncated: Examples that ran out of tokens.
        metrics: Further numbers of the benchmark.
        time_seconds: Wall time.
        pass_at_k: Probability that one of k samples is correct, by k.
    """

    name: str
    score: float
    num_examples: int
    num_correct: int
    num_errors: int = 0
    num_truncated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    time_seconds: float = 0.0
    pass_at_k: dict[int, float] = field(default_factory=dict)

    @property
    def num_completed(self) -> int:
        """Examples that neither failed nor were truncated."""
        return self.num_examples - self.num_errors - self.num_truncated

    @property
    def score_completed(self) -> float:
        """`num_correct / num_completed`, 0.0 when none was completed."""
        return self.num_correct / self.num_completed if self.num_completed > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The object that is stored; the k of `pass_at_k` are strings there, as JSON keys are."""
        return asdict(self) | {"pass_at_k": {str(k): value for k, value in self.pass_at_k.items()}}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """The record of a stored object; unknown keys are ignored.

        Raises:
            TypeError: A field without a default is missing.
            ValueError: A key of `pass_at_k` is no number.
        """
        result = super().from_dict(d)
        result.pass_at_k = {int(k): value for k, value in (result.pass_at_k or {}).items()}
        return result


@dataclass
class StoredTurn(_Record):
    """One turn of a trajectory.

    Attributes:
        role: Who speaks: `user`, `assistant`, `environment`, `grader`.
        content: What is said.
        token_count: Its length in tokens.
        metadata: Anything else.
    """

    role: str
    content: str
    token_count: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class StoredTrajectory(_Record):
    """One example of a benchmark as it was run.

    Attributes:
        idx: Number of the example.
        benchmark: Name of the benchmark.
        example_id: The example's own name.
        turns: What was said.
        reward: The grade; correct when positive.
        metrics: Numbers of this example.
        logs: Anything for a reader.
        error: Why it failed, `None` when it ran.
        time_seconds: Wall time.
    """

    idx: int
    benchmark: str
    example_id: str = ""
    turns: list[StoredTurn] = field(default_factory=list)
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    time_seconds: float = 0.0

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """The record of a stored object; unknown keys are ignored.

        Raises:
            TypeError: A field without a default is missing.
        """
        trajectory = super().from_dict(d)
        turns: Any = trajectory.turns or ()  # `null` in some files
        trajectory.turns = [
            turn if isinstance(turn, StoredTurn) else StoredTurn.from_dict(turn) for turn in turns
        ]
        return trajectory


def fields_of(record: Any, kind: type[_Record]) -> dict[str, Any]:
    """The stored form of a record, be it one of ours, a dict, or another object with its fields.

    Args:
        record: The object.
        kind: Our own class of such records, which names the fields.

    Raises:
        InvalidInputError: A field that every such record has is missing.
    """
    if isinstance(record, Mapping):
        row = dict(record)
    elif callable(to_dict := getattr(record, "to_dict", None)):
        row = dict(to_dict())
    else:
        names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]  # every subclass is a dataclass
        row = {name: getattr(record, name) for name in names if hasattr(record, name)}
    missing = [name for name in _required(kind) if row.get(name) is None]
    if missing:
        msg = f"a {kind.__name__} needs {', '.join(missing)}: {record!r:.200} has none"
        raise InvalidInputError(msg)
    if "turns" in row:
        row["turns"] = [fields_of(turn, StoredTurn) for turn in row["turns"] or []]
    return row


def _required(kind: type[_Record]) -> list[str]:
    return [
        entry.name
        for entry in fields(kind)  # type: ignore[arg-type]  # every subclass is a dataclass
        if entry.default is MISSING and entry.default_factory is MISSING
    ]
