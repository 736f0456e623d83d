"""`runstore demo`: train and save through the async API, watch it live, read it back through the sync one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from runstore import LocalStorage, TrainingRunStore
from runstore.cli._place import poll_seconds, store_at
from runstore.cli._text import short
from runstore.cli._train import Config, train
from runstore.cli._view import View, iterations_note
from runstore.storage._errors import write_error

__all__ = ["new_folder", "run_demo"]

# What the table at the end shows, and which value of each is the best.
HEADLINES = {"reward/mean": "highest", "test/reward/mean": "highest", "policy/entropy": "lowest"}
HEADLINE_COLUMNS = ("key", "first", "last", "best", "best at step")
PLAIN_LINE_EVERY = 10
SPARK_STEPS = 20
SPARKS = "▁▂▃▄▅▆▇█"

Show = Callable[[dict[str, Any]], None]


def new_folder(parent: Path) -> str:
    """Make a folder of this moment's name that nobody else has, and give its name.

    Raises:
        AccessDeniedError: The parent may not be written to.
        StorageFullError: No space is left.
    """
    stem = time.strftime("runstore-demo-%Y%m%d-%H%M%S")
    for name in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))):
        try:
            (parent / name).mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise write_error(error, str(parent / name)) from error
        return name
    raise AssertionError  # the names never end


def run_demo(view: View, place: str) -> None:
    """Train into a place, then show what lies there."""
    config, store = Config(), store_at(place)
    # Followers see what is in the bucket, so the progress moves in steps there.
    uploaded = "" if isinstance(store.storage, LocalStorage) else ", uploaded with each checkpoint"
    view.line(f"Training a policy on a bandit of {config.arms} arms, saved to {place}{uploaded}")
    try:
        asyncio.run(train_and_watch(store, config, view))
    except KeyboardInterrupt:
        store.storage.flush()
        view.line(f"Stopped. Every step written so far is in {place}")
        raise
    show_result(view, place)


async def train_and_watch(store: TrainingRunStore, config: Config, view: View) -> None:
    """Train, and beside it follow the metrics as any other process could."""
    watcher = asyncio.create_task(watch(store, config, view))
    try:
        await train(store, config)
        await watcher
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def watch(store: TrainingRunStore, config: Config, view: View) -> None:
    """Show each record as it is written, until the last step's."""
    progress = live_progress if view.is_live else plain_progress
    with progress(view, config.steps) as show:
        async with store.afollow_metrics(interval=poll_seconds(store)) as batches:
            async for batch in batches:
                for record in batch:
                    show(record)
                if batch.records[-1]["step"] == config.steps - 1:
                    return


@contextlib.contextmanager
def live_progress(view: View, steps: int) -> Iterator[Show]:
    """A bar that fills up in place, and the latest rewards as a small curve."""
    columns = (
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("reward {task.fields[reward]:.2f}"),
        TextColumn("{task.fields[curve]}", style="green"),
    )
    with Progress(*columns, console=view.console, expand=False) as bar:
        task = bar.add_task("", total=steps, reward=0.0, curve=" " * SPARK_STEPS)
        curve = ""

        def show(record: dict[str, Any]) -> None:
            nonlocal curve
            reward = record["reward/mean"]
            curve = (curve + SPARKS[min(int(reward * len(SPARKS)), len(SPARKS) - 1)])[-SPARK_STEPS:]
            bar.update(task, completed=record["step"] + 1, reward=reward, curve=f"{curve:<{SPARK_STEPS}}")

        yield show


@contextlib.contextmanager
def plain_progress(view: View, steps: int) -> Iterator[Show]:
    """A line every few steps, for pipes and files."""

    def show(record: dict[str, Any]) -> None:
        done = record["step"] + 1
        if done % PLAIN_LINE_EVERY == 0:
            view.line(f"step {done}/{steps}  reward {record['reward/mean']:.2f}")

    yield show


def show_result(view: View, place: str) -> None:
    """Open the run anew, as a script or a notebook would, and print what is in it."""
    store = store_at(place)
    metrics = store.read_metrics()
    view.heading("What the run holds")
    view.table(HEADLINE_COLUMNS, headline_rows(metrics), drop=("first", "best at step"))
    view.line()
    view.line(f"iterations   {iterations_note(store.list_iterations())}")
    view.line(f"checkpoints  {', '.join(record.name for record in store.read_checkpoint_records())}")
    view.line(f"timing       {timing_note(store.read_timing())}")
    view.plot("reward/mean", [(row["step"], row["reward/mean"]) for row in metrics], "step", height=12)
    show_commands(view, store.url(), shlex.quote(place))


def headline_rows(metrics: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """First, last and best value of the metrics that tell how the run went."""
    for key, best_is in HEADLINES.items():
        rows = [row for row in metrics if key in row]
        best_of = max if best_is == "highest" else min
        best = best_of(rows, key=itemgetter(key))
        yield key, short(rows[0][key]), short(rows[-1][key]), short(best[key]), str(best["step"])


def timing_note(timing: list[dict[str, Any]]) -> str:
    """Where the time of a step goes."""
    seconds: dict[str, float] = {}
    for record in timing:
        for span in record["spans"]:
            seconds[span["name"]] = seconds.get(span["name"], 0.0) + span["duration"]
    milliseconds = 1000 * seconds["step"] / len(timing)
    share = seconds["rollouts"] / seconds["step"]
    return f"{len(timing)} steps of {milliseconds:.0f} ms, {share:.0%} of it rollouts"


def show_commands(view: View, url: str, place: str) -> None:
    """Where the run lies, and how to look at it again."""
    view.heading("The run is in", url)
    for command in ("show {}", "plot {} reward/mean policy/entropy", "tail {} -n 5"):
        view.line(f"  runstore {command.format(place)}", "cyan")
