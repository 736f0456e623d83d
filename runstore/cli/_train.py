"""A small training run, saved as it goes: REINFORCE on a bandit, in plain Python.

A bandit is a row of slot machines; each arm pays 1 with a probability of its own. The policy (one
logit an arm, and a softmax over them) starts knowing nothing. In every step several workers pull arms
at the same time, and arms that paid more than expected become more likely.

`train` is the whole loop, and all that it needs of this package is a `TrainingRunStore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runstore import CheckpointRecord, TrainingRunStore

__all__ = ["Config", "train"]


@dataclass(frozen=True)
class Config:
    """Everything that decides how the run goes; two runs of one seed give the same metrics."""

    seed: int = 1
    steps: int = 80
    arms: int = 10
    workers: int = 8
    pulls_per_worker: int = 8
    pull_seconds: float = 0.004
    loss_fn: str = "reinforce"
    learning_rate: float = 1.5
    baseline_decay: float = 0.9
    rollouts_every: int = 10
    eval_every: int = 20
    save_every: int = 20

    def is_due(self, step: int, every: int) -> bool:
        """Whether something that is done every so often, and in the last step, is done in this one."""
        return step % every == 0 or step == self.steps - 1


async def train(store: TrainingRunStore, config: Config) -> None:
    """Train from nothing to the end, and save everything on the way."""
    await store.awrite_config(config)
    await store.awrite_code_diff(await asyncio.to_thread(code_as_diff))
    bandit, policy = Bandit.shuffled(config), Policy([0.0] * config.arms)
    for step in range(config.steps):
        watch = Stopwatch()
        with watch.span("step"):
            with watch.span("rollouts"):
                pulls = await roll_out(bandit, policy, config, f"train-{step}", watch)
            with watch.span("update"):
                metrics = policy.learn(pulls, config)
            if config.is_due(step, config.eval_every):
                with watch.span("eval"):
                    metrics |= await evaluate(store, bandit, policy, config, step)
            if config.is_due(step, config.rollouts_every):
                with watch.span("save_rollouts"):
                    await save_rollouts(store, step, "train", pulls)
        metrics["time/step"] = watch.seconds("step")
        await store.awrite_metrics(metrics, step=step)
        await store.awrite_timing_spans(step, watch.spans)
        done = step + 1
        if done % config.save_every == 0 and done < config.steps:
            await save_checkpoint(store, policy, f"{done:06d}", done)
    await save_checkpoint(store, policy, "final", config.steps)


# ---- the problem, and what learns to solve it


class Pull(NamedTuple):
    """One pull of an arm: an episode of a single action."""

    worker: int
    turn: int
    arm: int
    reward: float


@dataclass(frozen=True)
class Bandit:
    """A row of slot machines, and how often each pays."""

    payouts: Sequence[float]
    pull_seconds: float

    @classmethod
    def shuffled(cls, config: Config) -> Bandit:
        """Arms that pay between 10 and 90 percent of the time, in random order."""
        payouts = [0.1 + 0.8 * arm / (config.arms - 1) for arm in range(config.arms)]
        generator(config, "bandit").shuffle(payouts)
        return cls(payouts, config.pull_seconds)

    async def pull(self, arm: int, rng: random.Random) -> float:
        """Play once. An environment takes its time, and meanwhile the other workers go on."""
        await asyncio.sleep(self.pull_seconds * rng.uniform(0.5, 1.5))
        return float(rng.random() < self.payouts[arm])


@dataclass
class Policy:
    """A softmax over one logit an arm, and the reward it has come to expect."""

    logits: list[float]
    baseline: float | None = None

    def probabilities(self) -> list[float]:
        """How likely each arm is to be pulled."""
        highest = max(self.logits)
        weights = [math.exp(logit - highest) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def learn(self, pulls: Sequence[Pull], config: Config) -> dict[str, float]:
        """One step of REINFORCE: make arms likelier by how far they paid above the baseline."""
        chances = self.probabilities()
        reward = statistics.fmean(pull.reward for pull in pulls)
        baseline = reward if self.baseline is None else self.baseline
        gradient = [0.0] * len(chances)
        loss = 0.0
        for pull in pulls:
            advantage = (pull.reward - baseline) / len(pulls)
            loss -= advantage * math.log(chances[pull.arm])
            for arm, chance in enumerate(chances):
                gradient[arm] += advantage * ((arm == pull.arm) - chance)
        for arm, slope in enumerate(gradient):
            self.logits[arm] += config.learning_rate * slope
        self.baseline = config.baseline_decay * baseline + (1 - config.baseline_decay) * reward
        return {
            "reward/mean": reward,
            "reward/baseline": baseline,
            "optim/loss": loss,
            "optim/grad_norm": math.hypot(*gradient),
            "policy/entropy": -sum(chance * math.log(chance) for chance in chances),
            "policy/top_chance": max(chances),
        }


async def roll_out(
    bandit: Bandit, policy: Policy, config: Config, label: str, watch: Stopwatch
) -> list[Pull]:
    """Have every worker pull arms at the same time; the pulls come back in the workers' order."""
    chances = policy.probabilities()

    async def work(worker: int) -> list[Pull]:
        rng = generator(config, f"{label}-{worker}")
        pulls: list[Pull] = []
        with watch.span(f"rollouts/worker_{worker}"):
            for turn in range(config.pulls_per_worker):
                [arm] = rng.choices(range(config.arms), chances)
                pulls.append(Pull(worker, turn, arm, await bandit.pull(arm, rng)))
        return pulls

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(worker)) for worker in range(config.workers)]
    return [pull for task in tasks for pull in task.result()]


async def evaluate(
    store: TrainingRunStore, bandit: Bandit, policy: Policy, config: Config, step: int
) -> dict[str, float]:
    """Pull what the policy likes best, and nothing else."""
    best = max(range(config.arms), key=policy.logits.__getitem__)
    greedy = Policy([0.0 if arm == best else -math.inf for arm in range(config.arms)])
    pulls = await roll_out(bandit, greedy, config, f"eval-{step}", Stopwatch())
    await save_rollouts(store, step, "eval_greedy", pulls)
    return {"test/reward/mean": statistics.fmean(pull.reward for pull in pulls)}


def generator(config: Config, purpose: str) -> random.Random:
    """Random numbers of their own for each purpose, so that no task's timing changes another's."""
    return random.Random(f"{config.seed}-{purpose}")  # noqa: S311  not for cryptography


# ---- what is kept of it


async def save_rollouts(store: TrainingRunStore, step: int, name: str, pulls: Sequence[Pull]) -> None:
    """Keep every episode of a step, and a log tree for reading along."""
    records = [
        {
            "split": name,
            "iteration": step,
            "group_idx": pull.worker,
            "traj_idx": pull.turn,
            "total_reward": pull.reward,
            "steps": [{"step_idx": 0, "action": pull.arm, "reward": pull.reward, "episode_done": True}],
        }
        for pull in pulls
    ]
    await store.awrite_rollouts(step, records, base_name=name)
    await store.awrite_logtree(step, log_tree(f"{name}, step {step}", pulls), base_name=name)


def log_tree(title: str, pulls: Sequence[Pull]) -> dict[str, Any]:
    """A section a worker, with a line a pull."""
    sections: dict[int, list[Any]] = {}
    for pull in pulls:
        line = f"arm {pull.arm} pays {pull.reward:.0f}"
        sections.setdefault(pull.worker, []).append({"tag": "p", "attrs": {}, "children": [line]})
    children = [
        {"tag": "section", "attrs": {"title": f"worker {worker}"}, "children": lines}
        for worker, lines in sections.items()
    ]
    return {"title": title, "root": {"tag": "body", "attrs": {}, "children": children}}


async def save_checkpoint(store: TrainingRunStore, policy: Policy, name: str, batch: int) -> None:
    """Write the weights first and the record after: a record never names weights that are not there."""
    path = f"checkpoints/{name}.json"
    weights = {"logits": policy.logits, "baseline": policy.baseline}
    await store.storage.awrite(path, json.dumps(weights).encode())
    await store.awrite_checkpoint(
        CheckpointRecord(name, batch=batch, final=name == "final" or None, state_path=store.url(path))
    )


@dataclass
class Stopwatch:
    """Measures spans of a step, which may lie in one another and overlap."""

    spans: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Measure what happens inside the `with` block."""
        wall_start, start = time.time(), time.perf_counter()
        try:
            yield
        finally:
            duration = time.perf_counter() - start
            self.spans.append(
                {"name": name, "duration": duration, "wall_start": wall_start, "wall_end": time.time()}
            )

    def seconds(self, name: str) -> float:
        """How long the spans of a name took."""
        return math.fsum(span["duration"] for span in self.spans if span["name"] == name)


def code_as_diff() -> str:
    """This file as a patch that adds it. A real trainer keeps `git diff` here."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines(keepends=True)
    return "".join(difflib.unified_diff([], lines, "/dev/null", "b/train.py"))
