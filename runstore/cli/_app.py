"""The commands of `runstore`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from runstore import (
    IncrementalReader,
    InvalidInputError,
    LocalStorage,
    NotFoundError,
    RunMetadata,
    RunRegistry,
    RunStoreError,
    StorageStat,
    TrainingRunStore,
    strict_json,
)
from runstore.cli._demo import new_folder, run_demo
from runstore.cli._place import poll_seconds, store_at
from runstore.cli._plot import LARGEST
from runstore.cli._runs import COLUMNS, DROPPED, TEXTS, read_lines
from runstore.cli._scan import read_curves, summarize
from runstore.cli._text import flatten, one_line, printable
from runstore.cli._view import View

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The folder of a run, as a path or URI (s3://bucket/run).", show_default=False
    ),
]

METRICS = "metrics.jsonl"
RUN_FILES = {"config.json", METRICS, "timing_spans.jsonl", "checkpoints.jsonl", "code.diff"}
NEAR_MATCHES = 6

Found = TypeVar("Found")


def print_version(asked: bool | None) -> None:
    if asked:
        typer.echo(f"runstore {version('runstore')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool | None,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = None,
) -> None:
    """Look at machine-learning training runs: what is in them, and what comes in."""


@app.command()
def demo(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="[URI]",
            help="Where to keep the run, as a path or URI (s3://bucket/run); a new folder here by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train something small for a few seconds, watch it, and read it back."""
    view = View()
    if uri is not None and holds_run(store_at(uri)):
        msg = f"{uri} holds a run already: choose another place for the demo"
        raise InvalidInputError(msg)
    run_demo(view, new_folder(Path.cwd()) if uri is None else uri)


@app.command(name="ls")
def list_runs(
    roots: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ROOT]...",
            help="Folders of runs, as paths or URIs (s3://bucket/runs); here by default.",
            show_default=False,
        ),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", "-d", min=0, help="Levels of folders to look in.")] = 1,
    match: Annotated[str, typer.Option("--match", "-m", help="Only ids that match this glob.")] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array instead of a table.")] = False,  # noqa: FBT002  typer takes flags so
) -> None:
    """List runs: status, steps, last metrics, age."""
    view = View()
    stores = [open_folder(root) for root in roots or ["."]]
    registry = RunRegistry([store.storage for store in stores], depth=depth)
    lines = read_lines(registry, registry.get_runs(match))
    if not lines:
        for store in stores:
            require_something(store)
    for url, error in registry.storage_errors.items():
        typer.echo(f"runstore: {printable(url)} is left out: {one_line(error)}", err=True)
    if as_json:
        view.line(strict_json([line.to_dict() for line in lines]))
    elif lines:
        view.table(COLUMNS, [line.cells() for line in lines], drop=DROPPED, left=TEXTS)
    else:
        levels = "1 level" if depth == 1 else f"{depth} levels"
        view.line(f"no runs (looked {levels} deep; --depth changes that)")


@app.command()
def show(run: Run) -> None:
    """Show what a run holds: config, metrics, iterations, checkpoints, evaluations."""
    store, view = open_run(run), View()
    view.line(store.url(), "bold")
    parts = [
        show_part(view, "Config", store.read_config, view.config),
        show_part(view, "Metrics", lambda: summarize(store.storage, METRICS), view.metrics),
        show_part(view, "Iterations", store.list_iterations, view.iterations),
        show_part(view, "Checkpoints", store.read_checkpoint_records, view.checkpoints),
        show_part(view, "Evals", lambda: evaluations(store), view.evals),
        show_part(view, "Files", lambda: run_files(store), view.files),
    ]
    if not all(parts):
        typer.echo(f"runstore: {parts.count(False)} of {len(parts)} parts could not be read", err=True)
        raise typer.Exit(1)


def show_part(view: View, title: str, read: Callable[[], Found], show_it: Callable[[Found], None]) -> bool:
    """Show a part of a run, or why it cannot be read: the other parts are worth showing all the same."""
    try:
        found = read()
    except (RunStoreError, OSError) as error:
        view.heading(title)
        view.line(one_line(error), "red")
        return False
    show_it(found)
    return True


def evaluations(store: TrainingRunStore) -> list[RunMetadata]:
    """The evaluation runs that are kept with a run."""
    evals = RunRegistry([store.storage], depth=0).get_eval_store()
    return [] if evals is None else evals.list_runs()


def run_files(store: TrainingRunStore) -> dict[str, StorageStat]:
    """The run's own files."""
    files = store.storage.scan("").files
    return {name: stat for name, stat in files.items() if name in RUN_FILES}


@app.command()
def tail(
    run: Run,
    last: Annotated[
        int,
        typer.Option("--last", "-n", min=0, help="Records to begin with; 0 for only what comes from now on."),
    ] = 10,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", help="Show only this key; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Print metrics as they are written, until Ctrl-C."""
    store, view = open_folder(run), View()
    require_something(store)
    try:
        cursor = "end"
        if last:
            reader = IncrementalReader(store.storage, METRICS, max_records=last)
            reader.update()
            so_far = reader.snapshot()
            warn_of_wrong_keys(so_far.records, key or ())
            view.records(so_far.records, key or ())
            cursor = so_far.cursor
        follow(store, view, cursor, key or ())
    except KeyboardInterrupt:
        view.end_live()


def warn_of_wrong_keys(records: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Say so when none of the records has any of the keys: they may be mistyped, or still to come."""
    known = sorted({name for record in records for name, _ in flatten(record)})
    if keys and known and not set(keys) & set(known):
        for key in keys:
            typer.echo(f"runstore: warning: so far {no_such_key(key, known)}", err=True)


def follow(store: TrainingRunStore, view: View, cursor: str, keys: Sequence[str]) -> None:
    with store.follow_metrics(cursor=cursor, interval=poll_seconds(store)) as batches:
        for batch in batches:
            if batch.reset:
                view.line("-- the file was replaced: from its start again", "yellow")
            view.records(batch.records, keys)


@app.command()
def plot(
    run: Run,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Keys of the metrics.", show_default=False)
    ],
    height: Annotated[int, typer.Option(min=3, max=200, help="Rows of a plot.")] = 15,
) -> None:
    """Plot metrics against their step."""
    store, view = open_run(run), View()
    curves = read_curves(store.storage, METRICS, keys)
    # All of them before the first is drawn: a wrong key gives the error and nothing else.
    empty = [
        key for key, curve in curves.items() if not (has_points(curve.by_step) or has_points(curve.by_record))
    ]
    if empty:
        why = why_no_curve(empty, store)
        if len(empty) == len(curves):
            raise InvalidInputError(why)
        typer.echo(f"runstore: warning: {one_line(why)}", err=True)
    for key, curve in curves.items():
        if key in empty:
            continue
        values, x_label = (
            (curve.by_step, "step") if has_points(curve.by_step) else (curve.by_record, "record")
        )
        points = [(float(x), float(values[x])) for x in sorted(values) if is_drawable(x, values[x])]
        view.plot(key, points, x_label, height)


def has_points(values: Mapping[int, Any]) -> bool:
    return any(is_drawable(x, y) for x, y in values.items())


def is_drawable(x: int, y: Any) -> bool:
    is_number = isinstance(y, int | float) and not isinstance(y, bool)
    return is_number and abs(y) < LARGEST and abs(x) < LARGEST


def why_no_curve(keys: Sequence[str], store: TrainingRunStore) -> str:
    """What to say of keys that have nothing to draw.

    Raises:
        InvalidInputError: One of them is not in the metrics at all.
    """
    known = sorted(summarize(store.storage, METRICS).series)
    if not known:
        msg = f"there are no metrics yet in {store.url(METRICS)}"
        raise InvalidInputError(msg)
    for key in keys:
        if key not in known:
            raise InvalidInputError(no_such_key(key, known))
    return f"no value of {', '.join(map(repr, keys))} is a finite number"


def no_such_key(key: str, known: Sequence[str]) -> str:
    inside = [name for name in known if key.lower() in name.lower()]
    near = dict.fromkeys([*difflib.get_close_matches(key, known, NEAR_MATCHES), *inside])
    listed = list(near or known)[:NEAR_MATCHES]
    kind = "close to it" if near else f"the first of {len(known)} keys"
    return f"no metric is called {key!r}; {kind}: {', '.join(map(printable, listed))}"


# ---- opening a run, which never creates anything


def open_run(uri: str) -> TrainingRunStore:
    """The run in a folder.

    Raises:
        NotFoundError: There is no folder, or no run in it.
    """
    store = open_folder(uri)
    if not holds_run(store):
        msg = f"{uri} holds no run: none of {', '.join(sorted(RUN_FILES))} is in it"
        raise NotFoundError(msg)
    return store


def open_folder(uri: str) -> TrainingRunStore:
    """The run that is or will be in a folder.

    Raises:
        NotFoundError: There is no folder; a bucket has none, and is not asked.
    """
    store = store_at(uri)
    if isinstance(store.storage, LocalStorage) and not store.storage.root.is_dir():
        kind = "is a file, and a run is a folder" if store.storage.root.exists() else "does not exist"
        msg = f"{uri} {kind}"
        raise NotFoundError(msg)
    return store


def require_something(store: TrainingRunStore) -> None:
    """See to it that a mistyped place in a bucket is an error, as a folder that does not exist.

    Raises:
        NotFoundError: There is nothing at that place.
    """
    storage = store.storage
    if not storage.keeps_folders and not storage.list_dir(""):
        msg = f"there is nothing at {storage.url()}"
        raise NotFoundError(msg)


def holds_run(store: TrainingRunStore) -> bool:
    return any(name in RUN_FILES or name.startswith("iteration_") for name in store.storage.list_dir(""))
