"""The data: runs like those that trainers leave, written as Python's `json` writes them."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["METRICS", "ROLLOUTS", "TIMING", "eight_floats", "repeat_block", "rollout", "sixty_keys", "spans"]

METRICS = "metrics.jsonl"
TIMING = "timing_spans.jsonl"
ROLLOUTS = "iteration_000000/train_rollout_summaries.jsonl"

NAMES = (
    "loss",
    "entropy",
    "optim/grad_norm",
    "kl/sample_v1",
    "reward/total",
    "learning_rate",
    "time/sampling",
    "time/step",
)

Record = dict[str, Any]


def eight_floats(step: int) -> Record:
    """A record of 9 keys: the step and 8 floats, about 300 bytes."""
    return {"step": step, **{name: random.random() for name in NAMES}}


def eight_floats_with_nan(step: int) -> Record:
    """The same with one NaN, as a diverged run has."""
    return eight_floats(step) | {"loss": math.nan}


def sixty_keys(step: int) -> Record:
    """A record of 60 keys, about 2 KB."""
    return {"step": step, **{f"env/all/metric_{number:02}": random.random() for number in range(59)}}


def spans(step: int) -> Record:
    """A timing record of 460 spans, about 95 KB."""
    return {"step": step, "spans": [_span(number) for number in range(460)]}


def _span(number: int) -> Record:
    where = f"train_iteration/collect_rollouts/group_{number // 8:05}/trajectory_{number % 8:05}"
    start = random.uniform(0, 1000)
    duration = random.random()
    return {
        "name": f"{where}/sample_with_retries/request_{number:05}",
        "duration": duration,
        "wall_start": start,
        "wall_end": start + duration,
    }


def rollout(number: int) -> Record:
    """A trajectory of about 20 KB: 20 steps with numbers and some text."""
    return {
        "schema_version": 1,
        "split": "train",
        "iteration": 0,
        "group_idx": number // 8,
        "traj_idx": number % 8,
        "tags": ["math", "gsm8k"],
        "total_reward": random.random(),
        "steps": [_rollout_step(index) for index in range(20)],
        "final_ob_len": random.randrange(4000),
    }


def _rollout_step(index: int) -> Record:
    words = " ".join(
        random.choices(("let", "x", "=", "3.5", 'the "answer"', "is", "so\n", "we", "add"), k=180)
    )
    return {
        "step_idx": index,
        "ob_len": random.randrange(4000),
        "ac_len": random.randrange(4000),
        "reward": random.random(),
        "episode_done": index == 19,
        "metrics": {"format": random.random(), "correct": random.random()},
        "logs": {"response": words},
    }


def lines(count: int, record: Callable[[int], Record]) -> bytes:
    """Records as lines."""
    return "".join(f"{json.dumps(record(number))}\n" for number in range(count)).encode()


def write_file(path: Path, data: bytes) -> None:
    """Write a file and its folder, and have it look as if it had been left alone for a while."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    settled = time.time() - 60
    os.utime(path, (settled, settled))


def repeat_block(path: Path, block: bytes, size: int) -> int:
    """Write a file of `size` bytes or more by repeating a block, and wait until it is on the disk.

    Returns:
        How often the block was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    times = -(-size // len(block))
    with path.open("wb") as file:
        for _ in range(times):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return times
