"""The error tree: what a handler can rely on."""

import errno
import pickle
from pathlib import Path

import pytest

import runstore
from runstore import LocalStorage, RunStoreError, errors
from runstore.storage._errors import storage_error, write_error

# Each leaf and the builtin that code without this package would catch.
TREE: dict[str, tuple[type[BaseException], ...]] = {
    "AccessDeniedError": (PermissionError, OSError),
    "EventLoopError": (RuntimeError,),
    "InvalidInputError": (ValueError,),
    "MalformedFileError": (ValueError,),
    "MissingDependencyError": (ImportError,),
    "NotFoundError": (FileNotFoundError, OSError),
    "StorageFullError": (OSError,),
    "StorageIOError": (OSError,),
    "UnstorableValueError": (TypeError, ValueError),
}


def test_the_tree_is_pinned() -> None:
    """There are these errors and no others, each directly below the root and below its builtins."""
    assert sorted(errors.__all__) == sorted([*TREE, "RunStoreError"])
    assert RunStoreError.__bases__ == (Exception,)
    for name, builtins in TREE.items():
        leaf = getattr(errors, name)
        assert leaf.__bases__[0] is RunStoreError
        assert all(issubclass(leaf, builtin) for builtin in builtins)
        assert leaf.__doc__
        assert getattr(runstore, name) is leaf
    wide = [name for name in TREE if issubclass(getattr(errors, name), PermissionError | FileNotFoundError)]
    assert wide == ["AccessDeniedError", "NotFoundError"]


@pytest.mark.parametrize("name", [*TREE, "RunStoreError"])
def test_an_error_survives_pickling(name: str) -> None:
    """Its class, message and, where it has them, error number and path arrive in another process."""
    leaf = getattr(errors, name)
    system = issubclass(leaf, OSError)
    error = leaf(errno.EIO, "what happened", "/some/path") if system else leaf("what happened at /some/path")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is leaf
    assert str(again) == str(error)
    assert "what happened" in str(again)
    assert "/some/path" in str(again)
    if system:
        assert (again.errno, again.strerror, again.filename) == (errno.EIO, "what happened", "/some/path")


@pytest.mark.parametrize(
    ("code", "read", "write"),
    [
        (errno.ENOENT, "NotFoundError", "NotFoundError"),
        (errno.ENOTDIR, "NotFoundError", "StorageIOError"),
        (errno.EISDIR, "NotFoundError", "StorageIOError"),
        (errno.EEXIST, "StorageIOError", "StorageIOError"),
        (errno.EACCES, "AccessDeniedError", "AccessDeniedError"),
        (errno.EPERM, "AccessDeniedError", "AccessDeniedError"),
        (errno.EROFS, "AccessDeniedError", "AccessDeniedError"),
        (errno.ENOSPC, "StorageFullError", "StorageFullError"),
        (errno.EDQUOT, "StorageFullError", "StorageFullError"),
        (errno.EFBIG, "StorageFullError", "StorageFullError"),
        (errno.EIO, "StorageIOError", "StorageIOError"),
        (errno.ESTALE, "StorageIOError", "StorageIOError"),
        (errno.EMFILE, "StorageIOError", "StorageIOError"),
    ],
)
def test_the_table_of_errors(code: int, read: str, write: str) -> None:
    """Each error of the system becomes one leaf with its number and path, when reading and when writing."""
    for translate, expected in ((storage_error, read), (write_error, write)):
        error = translate(OSError(code, "reason"), "/some/path")
        assert type(error).__name__ == expected
        assert isinstance(error, OSError)
        assert error.errno == code
        assert error.filename == "/some/path"


def test_an_error_without_a_number_is_told_by_its_class() -> None:
    """Objects of other makes raise `FileNotFoundError("text")`; it is missing all the same."""
    assert isinstance(storage_error(FileNotFoundError("no such key"), "f"), errors.NotFoundError)
    assert isinstance(storage_error(PermissionError("no"), "f"), errors.AccessDeniedError)
    other = storage_error(OSError("connection lost"), "f")
    assert isinstance(other, errors.StorageIOError)
    assert "connection lost" in str(other)


@pytest.mark.anyio
async def test_the_cause_is_kept_in_both_colours(tmp_path: Path) -> None:
    """What the system said is the cause, awaited or not."""
    storage = LocalStorage(tmp_path, mkdir=False)
    with pytest.raises(errors.NotFoundError) as called:
        storage.read("f")
    with pytest.raises(errors.NotFoundError) as awaited:
        await storage.aread("f")
    for caught in (called, awaited):
        assert type(caught.value.__cause__) is FileNotFoundError
        assert caught.value.filename == str(tmp_path / "f")
        assert caught.value.errno == errno.ENOENT
