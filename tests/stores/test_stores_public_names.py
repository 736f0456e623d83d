"""The table of contents: what the package exports, and what importing it costs."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import runstore

# What `import runstore` must not load: backends, the command line, and what is paid at first use.
HEAVY = [
    "s3fs",
    "fsspec",
    "botocore",
    "aiobotocore",
    "aiohttp",
    "rich",
    "typer",
    "plotille",
    "anyio.from_thread",
    "aiofiles",
    "numpy",
    "multiprocessing",
]


def test_all_is_what_the_module_exports() -> None:
    """`__all__` names each public thing of the module once, and nothing that is not there."""
    assert len(runstore.__all__) == len(set(runstore.__all__))
    public = {
        name
        for name, value in vars(runstore).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(runstore.__all__) == public
    for name in runstore.__all__:
        assert getattr(runstore, name).__doc__, name


def test_all_is_what_init_imports() -> None:
    """Each name that `runstore/__init__.py` imports is in `__all__`."""
    tree = ast.parse(Path(inspect.getfile(runstore)).read_text(encoding="utf-8"))
    imported = [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(imported) == sorted(runstore.__all__)


def test_each_public_name_is_used_in_the_typed_file() -> None:
    """`tests/typing/api.py`, which the type checker reads, imports and uses every public name."""
    source = (Path(__file__).parents[1] / "typing" / "api.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "runstore"
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert imported == set(runstore.__all__)
    assert imported <= used


def loaded_by(code: str) -> set[str]:
    """The names of the modules that a fresh process has loaded after some code."""
    code += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    return set(json.loads(finished.stdout))


def test_importing_loads_nothing_heavy() -> None:
    """A fresh process that imports the package has loaded no backend and no command line."""
    loaded = loaded_by("import runstore")
    assert "runstore.stores._training" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_sync_use_loads_nothing_heavy(tmp_path: Path) -> None:
    """Nor has one that wrote and read a run on a local disk by the sync methods."""
    loaded = loaded_by(
        f"import runstore; store = runstore.TrainingRunStore({str(tmp_path / 'run')!r})\n"
        "store.write_metrics({'loss': 0.5}, 1); store.read_metrics()\n"
        "store.write_config({}); store.read_config()\n"
        "store.write_rollouts(1, []); store.read_rollouts(1)\n"
        "store.list_iterations(); store.truncate_metrics(1)"
    )
    assert loaded.isdisjoint(HEAVY)


def test_naming_a_bucket_loads_nothing_heavy() -> None:
    """Nor has one that named a run in a bucket, whose libraries are loaded at its first use."""
    loaded = loaded_by("import runstore; runstore.TrainingRunStore('s3://bucket/run')")
    assert "runstore.remote._s3_files" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", runstore.__all__)
def test_a_public_class_says_where_it_is_from(name: str) -> None:
    """Each public thing belongs to this package, by name too."""
    value = getattr(runstore, name)
    assert value.__module__.partition(".")[0] == "runstore"
    assert value.__name__ == name
