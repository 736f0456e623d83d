"""What the commands print: tables and plots for a terminal, plain text for everything else."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runstore import CheckpointRecord, IterationInfo, RunMetadata, StorageStat
from runstore.cli._plot import Point, draw
from runstore.cli._scan import Series, Summary
from runstore.cli._text import flatten, printable, record_line, short

__all__ = ["View"]

# Columns of a table where no terminal sets a limit, so that nothing is cut on its way into a file.
UNLIMITED = 1_000

# A narrow terminal gets only the first columns.
METRIC_COLUMNS = ("key", "last", "lowest", "highest", "at step", "records")
NARROW_COLUMNS = 4
WIDE = 80

CONFIG_ROWS = 24
CONFIG_KEY_WIDTH = 40
CHECKPOINT_ROWS = 5
EVAL_ROWS = 10
PATH_LENGTH = 1_000  # paths of checkpoints are there to be copied
PLOT_WIDTH = 100
PIPED_PLOT_WIDTH = 80


class View:
    """Prints to the standard output: in colour and within the width of a terminal, if it is one."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False, width=_width())

    @property
    def is_live(self) -> bool:
        """Whether lines that were printed can be drawn again."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line as it is, however long: paths and commands stay whole for copying."""
        self.console.print(Text(text, style), soft_wrap=True)

    def end_live(self) -> None:
        """Leave the line on which a terminal shows the ^C that ended a command."""
        if self.console.is_terminal:
            # Not through the console, which prints again what it was printing when the ^C came.
            self.console.file.write("\n")

    def heading(self, title: str, note: str = "") -> None:
        """Print the line above a part."""
        self.console.print()
        self.console.print(
            Text.assemble((title, "bold"), ("  " if note else ""), (note, "dim")), soft_wrap=True
        )

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
        """Print a table: the first columns on the left, numbers on the right."""
        table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
        for index, column in enumerate(columns):
            table.add_column(
                column,
                justify="left" if index < left else "right",
                overflow="fold",
                no_wrap=0 < index < len(columns) - 1,
            )
        for row in rows:
            table.add_row(*map(Text, row))
        self.console.print(table)

    # ---- parts of a run

    def config(self, config: Mapping[str, Any] | None) -> None:
        """Print the configuration, nested keys as `outer/inner`."""
        if config is None:
            self.heading("Config", "none")
            return
        rows = [(printable(key), short(value)) for key, value in flatten(config)]
        self.heading("Config", _more(len(rows), CONFIG_ROWS, "config.json"))
        width = max((min(len(key), CONFIG_KEY_WIDTH) for key, _ in rows[:CONFIG_ROWS]), default=0)
        for key, value in rows[:CONFIG_ROWS]:
            self.console.print(Text.assemble((f"{key:<{width}}", "cyan"), "  ", value), soft_wrap=True)

    def metrics(self, summary: Summary) -> None:
        """Print what each key held last, and between which bounds."""
        self.heading("Metrics", metrics_note(summary))
        if summary.series:
            columns = METRIC_COLUMNS if self.console.width >= WIDE else METRIC_COLUMNS[:NARROW_COLUMNS]
            rows = (_series_row(key, series) for key, series in sorted(summary.series.items()))
            self.table(columns, (row[: len(columns)] for row in rows))
        if summary.malformed:
            self._malformed(summary)
        if summary.unfinished:
            self.line(f"the last line is unfinished: {summary.unfinished} bytes without a newline", "yellow")

    def _malformed(self, summary: Summary) -> None:
        self.line(f"{_count(summary.malformed, 'malformed line')} skipped; the latest:", "yellow")
        for found in summary.latest_malformed:
            self.line(f"  line {found.line}, byte {found.offset}: {found.reason}")

    def iterations(self, iterations: Sequence[IterationInfo]) -> None:
        """Print how many iterations left something, and what."""
        self.heading("Iterations", iterations_note(iterations))

    def checkpoints(self, checkpoints: Sequence[CheckpointRecord]) -> None:
        """Print the latest checkpoints."""
        note = _more(len(checkpoints), CHECKPOINT_ROWS, "checkpoints.jsonl") if checkpoints else "none"
        self.heading("Checkpoints", note)
        for record in checkpoints[-CHECKPOINT_ROWS:]:
            self.line(record_line(record.to_dict(), longest=PATH_LENGTH))

    def evals(self, runs: Sequence[RunMetadata]) -> None:
        """Print the evaluation runs, the newest first, with their scores."""
        self.heading("Evals", _more(len(runs), EVAL_ROWS, "runs.jsonl"))
        for run in runs[:EVAL_ROWS]:
            scores = {"checkpoint": run.checkpoint_name or "base", **run.scores}
            self.line(f"{printable(run.run_id)}  {record_line(scores)}")

    def files(self, files: Mapping[str, StorageStat]) -> None:
        """Print the sizes of the run's own files."""
        sizes = [f"{printable(name)} {_size(stat.size)}" for name, stat in files.items()]
        self.heading("Files", ", ".join(sizes) or "none")

    def plot(self, title: str, points: Sequence[Point], x_label: str, height: int) -> None:
        """Print a curve."""
        self.heading(printable(title), f"against {x_label}")
        width = min(self.console.width, PLOT_WIDTH) if self.console.is_terminal else PIPED_PLOT_WIDTH
        ascii_only = not self.console.encoding.lower().startswith("utf")
        for row in draw(points, width, height, ascii_only=ascii_only):
            self.line(row, "green")

    def records(self, records: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
        """Print a line a record, cut to the width of a terminal."""
        for record in records:
            text = Text(record_line(record, keys))
            if self.console.is_terminal:
                text.truncate(self.console.width, overflow="ellipsis")
            self.console.print(text, soft_wrap=True)


def metrics_note(summary: Summary) -> str:
    """How many records, steps and keys."""
    if not summary.records:
        return "none"
    parts = [_count(summary.records, "record"), _count(len(summary.series), "key")]
    steps = summary.steps
    if steps.has_numbers:
        parts.insert(1, f"steps {short_step(steps.lowest)} to {short_step(steps.highest)}")
    return ", ".join(parts)


def iterations_note(iterations: Sequence[IterationInfo]) -> str:
    """How many iterations, from which to which, and what they hold."""
    if not iterations:
        return "none"
    parts = [f"{len(iterations)}, from {iterations[0].iteration} to {iterations[-1].iteration}"]
    rollouts = sum(info.has_train_rollouts for info in iterations)
    logtrees = sum(info.has_train_logtree for info in iterations)
    parts += [f"train rollouts in {rollouts}"] * bool(rollouts)
    parts += [f"train log tree in {logtrees}"] * bool(logtrees)
    labels = sorted({label for info in iterations for label in info.eval_labels})
    parts += [f"eval {printable(', '.join(labels))}"] * bool(labels)
    return "; ".join(parts)


def short_step(step: float) -> str:
    """A step as a person writes it: without the point of a float that is whole."""
    return str(int(step)) if math.isfinite(step) and step == int(step) else short(step)


def _series_row(key: str, series: Series) -> tuple[str, ...]:
    step = "" if series.last_step is None else short(series.last_step)
    bounds = (short(series.lowest), short(series.highest)) if series.has_numbers else ("", "")
    return (printable(key), short(series.last), *bounds, step, str(series.count))


def _more(count: int, shown: int, where: str) -> str:
    return f"{shown} of {count}; all are in {where}" if count > shown else str(count)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:  # noqa: PLR2004
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def _width() -> int | None:
    """The width for rich: a terminal's own, or what COLUMNS says."""
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else UNLIMITED
