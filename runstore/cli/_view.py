"""What the commands print: tables and plots for a terminal, plain text for everything else."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runstore import CheckpointRecord, IterationInfo, RunMetadata, StorageStat
from runstore.cli._plot import Point, draw
from runstore.cli._scan import Series, Summary
from runstore.cli._text import flatten, has_any, printable, record_line, short

__all__ = ["View"]

# Columns of a table where no terminal sets a limit, so that nothing is cut on its way into a file.
UNLIMITED = 1_000

METRIC_COLUMNS = ("key", "last", "last at step", "lowest", "highest", "records")
# What a terminal that is too narrow goes without, the first of them first.
METRIC_COLUMNS_TO_DROP = ("records", "last at step", "highest", "lowest")

# What names get at least, in columns and as a share of the terminal, before they are folded.
NAME_WIDTH = 30
NAME_SHARE = 0.5
# What a value may take up where not all fits: more than any number needs, but for huge ones.
VALUE_WIDTH = 14
COLUMN_GAP = 3  # as rich leaves it

CONFIG_ROWS = 24
CONFIG_KEY_WIDTH = 40
CHECKPOINT_ROWS = 5
CHECKPOINT_COLUMNS = ("name", "batch", "epoch", "final", "state_path", "sampler_path")
EVAL_ROWS = 10
PATH_LENGTH = 1_000  # paths of checkpoints are there to be copied
PLOT_WIDTH = 100
PIPED_PLOT_WIDTH = 80


class View:
    """Prints to the standard output: in colour and within the width of a terminal, if it is one."""

    def __init__(self) -> None:
        width = _width()
        self.console = Console(highlight=False, markup=False, emoji=False, width=width)
        self._has_limit = width != UNLIMITED

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

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        drop: Iterable[str] = (),
        left: Collection[str] = (),
    ) -> list[str]:
        """Print a table: names on the left, numbers on the right.

        Args:
            columns: Their titles; the first is that of the names.
            rows: A text for each column.
            drop: Columns to do without where there is no room for all of them, the first of them first.
            left: Columns of text, which begins on the left.

        Returns:
            The columns that there was no room for, which are named below the table too.
        """
        names, *values = zip(columns, *rows, strict=True)
        widths, dropped = self._fit(names, values, drop, left)
        name_width = max(self.console.width - sum(widths.values()), 1)
        table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
        table.add_column(columns[0], no_wrap=True)
        for column, width in widths.items():
            justify: Literal["left", "right"] = "left" if column in left else "right"
            table.add_column(column, justify=justify, max_width=width - COLUMN_GAP, no_wrap=True)
        shown = [column[1:] for column in values if column[0] in widths]
        for name, *row in zip(names[1:], *shown, strict=True):
            table.add_row(_fold(name, name_width), *map(Text, row))
        self.console.print(table)
        if dropped:
            self.console.print(Text(f"too narrow for: {', '.join(dropped)}", "dim"))
        return dropped

    def _fit(
        self,
        names: Sequence[str],
        values: Sequence[Sequence[str]],
        drop: Iterable[str],
        left: Collection[str],
    ) -> tuple[dict[str, int], list[str]]:
        """The width of each column of values that stays, and the columns that do not."""
        limit = self.console.width
        room = limit - min(max(map(cell_len, names)), max(NAME_WIDTH, int(limit * NAME_SHARE)))
        widths = {column[0]: max(map(cell_len, column)) + COLUMN_GAP for column in values}
        if sum(widths.values()) > room:  # one long text must not push out every other column
            most = VALUE_WIDTH + COLUMN_GAP
            widths = {key: width if key in left else min(width, most) for key, width in widths.items()}
        dropped = []
        for column in drop:
            if column in widths and sum(widths.values()) > room:
                del widths[column]
                dropped.append(column)
        return widths, dropped

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
            rows = (_series_row(key, series) for key, series in sorted(summary.series.items()))
            self.table(METRIC_COLUMNS, rows, drop=METRIC_COLUMNS_TO_DROP)
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
        """Print the latest checkpoints, and of the newest the paths that the table has no room for."""
        note = _more(len(checkpoints), CHECKPOINT_ROWS, "checkpoints.jsonl") if checkpoints else "none"
        self.heading("Checkpoints", note)
        rows = [dict(flatten(record.to_dict())) for record in checkpoints[-CHECKPOINT_ROWS:]]
        if not rows:
            return
        found = dict.fromkeys(key for row in rows for key in row)
        known = [key for key in CHECKPOINT_COLUMNS if key in found or key == "name"]
        # Paths are last: they are the widest. Sorting leaves the rest of the order as it is.
        columns = sorted(dict.fromkeys([*known, *found]), key=_is_path)
        paths = [column for column in columns if _is_path(column)]
        texts = [[_checkpoint_value(column, row) for column in columns] for row in rows]
        titles = [printable(column) for column in columns]
        dropped = self.table(titles, texts, drop=titles[:0:-1], left=[printable(path) for path in paths])
        for path in paths:
            title, newest = printable(path), rows[-1]
            if title in dropped and path in newest:
                self.line(
                    f"{title} of {_checkpoint_value('name', newest)}  {_checkpoint_value(path, newest)}"
                )

    def evals(self, runs: Sequence[RunMetadata]) -> None:
        """Print the evaluation runs, the newest first, with their scores; nothing where there are none."""
        if not runs:
            return
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
        width = min(self.console.width, PLOT_WIDTH) if self._has_limit else PIPED_PLOT_WIDTH
        ascii_only = not self.console.encoding.lower().startswith("utf")
        for row in draw(points, width, height, ascii_only=ascii_only):
            self.line(row, "green")

    def records(self, records: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
        """Print a line for each record that has one of the keys, cut to the width of a terminal."""
        for record in records:
            if keys and not has_any(record, keys):
                continue
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
    first, last = iterations[0].iteration, iterations[-1].iteration
    parts = [f"{len(iterations)}, from {first} to {last}" if first != last else f"1, number {first}"]
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
    return (printable(key), short(series.last), step, *bounds, str(series.count))


def _is_path(key: str) -> bool:
    return key.endswith("_path")


def _checkpoint_value(key: str, row: Mapping[str, Any]) -> str:
    if key not in row:
        return ""
    return short(row[key], PATH_LENGTH) if _is_path(key) else short(row[key])


def _fold(name: str, width: int) -> Text:
    """A name that is too long goes on in further lines, each of whole parts between its slashes."""
    lines = [""]
    for part in re.findall(r"[^/]*/|[^/]+", name):
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("  ")
        lines[-1] += part
    texts = [Text(line) for line in lines]
    for text in texts:
        text.truncate(width, overflow="ellipsis")
    return Text("\n").join(texts)


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
    """The width for rich: what COLUMNS says, or a terminal's own."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return None if sys.stdout.isatty() else UNLIMITED
