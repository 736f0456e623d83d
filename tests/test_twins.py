"""Every async method has its sync twin, with the same parameters and results."""

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

import runstore

CLASSES = [value for name in runstore.__all__ if inspect.isclass(value := getattr(runstore, name))]

# An async method whose sync twin has another name than the rule gives it, or none.
SPECIAL = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__anext__": "__next__",
    "__aiter__": "__iter__",
}
# Of these, the other colour is a class of its own.
OTHER_HALF: dict[type, type] = {
    runstore.AsyncFollower: runstore.Follower,
    runstore.AsyncStorage: runstore.Storage,
}
# Results that differ by nature, as names of classes.
RESULTS = {"AsyncFollower": "Follower", "AsyncGenerator[Record]": "Generator[Record]"}


def methods(owner: type) -> dict[str, Any]:
    """The methods of a class by name, inherited ones too."""
    return {name: value for name, value in inspect.getmembers(owner) if inspect.isfunction(value)}


def awaited(name: str, function: Any) -> bool:
    """Whether a method is the async one of a pair."""
    return inspect.iscoroutinefunction(function) or (
        name.startswith(("afollow", "aiter_")) or name in SPECIAL
    )


def pairs() -> Iterator[Any]:
    for owner in CLASSES:
        for name, function in methods(owner).items():
            if awaited(name, function) and (name in SPECIAL or not name.startswith("_")):
                yield pytest.param(owner, name, id=f"{owner.__name__}.{name}")


PAIRS = list(pairs())
# Those of one class, whose sync form is a method of the same.
IN_ONE_CLASS = [pair for pair in PAIRS if pair.values[0] not in OTHER_HALF and pair.values[1] not in SPECIAL]


@pytest.mark.parametrize(("owner", "name"), PAIRS)
def test_an_async_method_has_its_twin(owner: type, name: str) -> None:
    """The twin has the name without `a`, the same parameters, defaults and types, and the same result."""
    twin_name = SPECIAL.get(name, name[1:])
    other = methods(OTHER_HALF.get(owner, owner))
    assert twin_name in other, f"{owner.__name__}.{name} has no sync twin {twin_name}"
    one, two = methods(owner)[name], other[twin_name]
    assert not inspect.iscoroutinefunction(two)
    signatures = inspect.signature(one), inspect.signature(two)
    assert [str(parameter) for parameter in signatures[0].parameters.values()] == [
        str(parameter) for parameter in signatures[1].parameters.values()
    ]
    results = [str(signature.return_annotation).strip("'") for signature in signatures]
    assert RESULTS.get(results[0], results[0]) == results[1]


@pytest.mark.parametrize(("owner", "name"), IN_ONE_CLASS)
def test_a_twin_shows_what_its_original_says(owner: type, name: str) -> None:
    """`help()` of the sync form names its twin, and shows parameters, results and errors as the twin does."""
    original, twin = inspect.getdoc(getattr(owner, name)), inspect.getdoc(getattr(owner, name[1:]))
    assert twin == f"Sync twin of `{name}`.\n\n{original}"


@pytest.mark.parametrize("owner", CLASSES)
def test_every_twin_has_its_original(owner: type) -> None:
    """No method says that it is a twin of one that is not there."""
    for name, function in methods(owner).items():
        if (function.__doc__ or "").startswith("Sync twin"):
            assert f"a{name}" in methods(owner)


@pytest.mark.parametrize("owner", CLASSES)
def test_every_public_method_is_documented_and_typed(owner: type) -> None:
    """Whatever a user may call has a docstring, and types on every parameter and result."""
    for name, function in methods(owner).items():
        if name.startswith("_") or not function.__module__.startswith("runstore."):
            continue
        assert inspect.getdoc(getattr(owner, name)), f"{owner.__name__}.{name}"
        hints = get_type_hints(function, vars(inspect.getmodule(function)))
        parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
        assert parameters | {"return"} <= set(hints), f"{owner.__name__}.{name}"


def test_there_are_pairs() -> None:
    """The walk above finds the pairs of storage, reader and run store."""
    found = [parameter.id for parameter in PAIRS]
    assert {
        "Storage.aread",
        "LocalStorage.aappend_lines",
        "FsspecStorage.aflush",
        "S3Storage.aappend",
        "IncrementalReader.ahas_data",
        "TrainingRunStore.awrite_metrics",
        "TrainingRunStore.afollow_timing",
        "TrainingRunStore.aiter_rollouts",
        "RunRegistry.aget_runs",
        "EvalStore.aread_trajectories",
        "AsyncFollower.aclose",
    } <= set(found)
    assert len(found) > 100
