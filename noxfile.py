"""Test, lint, typing and benchmark sessions: `nox` runs the first three."""

import shutil
import subprocess
import sys

import nox

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def runs(version: str) -> bool:
    """Tell whether `pythonX.Y` really is that Python.

    Being on PATH is not enough: a version manager's shim is there for versions it cannot start.
    """
    program = shutil.which(f"python{version}")
    if program is None:
        return False
    probe = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(  # noqa: S603 - the program is one of SUPPORTED, found on PATH
            probe, capture_output=True, text=True, check=False, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


PYTHONS = [version for version in SUPPORTED if version == RUNNING or runs(version)] or [RUNNING]
# Says which runstore is tested, and fails if it is not the installed one.
SHOW_INSTALLED = """
import runstore, sys
print("testing", runstore.__file__, flush=True)
sys.exit("site-packages" not in runstore.__file__)
"""
GROUPS = nox.project.load_toml("pyproject.toml")

nox.needs_version = ">=2025.10.14"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.download_python = "never"
# nox makes a missing Python an error when CI is set; here the Pythons that are found are the ones tested.
nox.options.error_on_missing_interpreters = False


def group(*names: str) -> tuple[str, ...]:
    """Give the requirements of dependency groups of pyproject.toml."""
    return nox.project.dependency_groups(GROUPS, *names)


def run_tests(session: nox.Session, *options: str, **env: str) -> None:
    """Run the test suite against the installed package, never against the working tree."""
    session.install(".[cli]", *group("tests"))
    # Keeps the current folder, with its own `runstore`, off sys.path here and in child processes.
    env["PYTHONSAFEPATH"] = "1"
    # One Python is tested against the S3 server; it must be there then.
    env["RUNSTORE_TEST_S3"] = "1" if session.python == RUNNING else "0"
    session.run("python", "-c", SHOW_INSTALLED, env=env)
    session.run("python", "-m", "pytest", "-n", "2", *options, *session.posargs, env=env)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the test suite on each Python that is found."""
    run_tests(session)


@nox.session(python=RUNNING)
def tests_long(session: nox.Session) -> None:
    """Run the test suite with many more Hypothesis examples."""
    run_tests(session, "--timeout=900", HYPOTHESIS_PROFILE="long")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    session.install(".[cli]", *group("tests", "bench", "types"))
    session.run("mypy", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks, which import the working tree; arguments after `--` go to them."""
    session.install(".[cli]", *group("bench"))
    # Only the peer's store modules are measured, and they need none of its dependencies.
    session.install("--no-deps", "tinker-cookbook>=0.6.1")
    session.run("python", "-m", "benchmarks", *session.posargs)
