"""What `import runstore` costs."""

from __future__ import annotations

from benchmarks._measure import PEER, Bench, alternate
from benchmarks._row import Row, Unit

__all__ = ["importing"]


def importing(bench: Bench) -> list[Row]:
    """The import in a fresh process, and the heavy packages that it loads."""
    names = {"runstore": "runstore"} | ({"peer": PEER} if bench.peer is not None else {})

    def import_in_child(name: str, wanted: str) -> float:
        return bench.child_value("_child_import.py", name, wanted)

    seconds = alternate(
        3 * bench.scale.rounds,
        {key: lambda name=name: import_in_child(name, "seconds") for key, name in names.items()},  # type: ignore[misc]
    )
    loaded = alternate(1, {"runstore": lambda: import_in_child("runstore", "heavy")})
    return [
        Row("import in a fresh process", Unit.MILLISECONDS, seconds, at_most=0.080),
        Row("s3fs, fsspec, botocore, aiohttp, rich, typer: loaded by it", Unit.COUNT, loaded, at_most=0),
    ]
