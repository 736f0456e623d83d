"""The benchmarks as a package that tests can import: the repository's root is not on sys.path."""

import importlib.util
import sys
from pathlib import Path

__all__ = ["load_benchmarks"]

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load_benchmarks() -> None:
    """Import the package from its folder; its modules can then be imported as usual."""
    if "benchmarks" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location("benchmarks", FOLDER / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
