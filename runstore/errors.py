"""The error tree: one root, and leaves named for what the handler does about them.

Each leaf is also the builtin exception that code without this package would catch
(`FileNotFoundError`, `PermissionError`, `ValueError` …). Errors of other libraries are
translated at the edge of a backend and kept as `__cause__`.
"""

__all__ = [
    "AccessDeniedError",
    "EventLoopError",
    "InvalidInputError",
    "MalformedFileError",
    "MissingDependencyError",
    "NotFoundError",
    "RunStoreError",
    "StorageFullError",
    "StorageIOError",
    "UnstorableValueError",
]


class RunStoreError(Exception):
    """Root of every error that this package raises on purpose."""


class NotFoundError(RunStoreError, FileNotFoundError):
    """There is no file at this path. Nothing else is reported this way."""


class AccessDeniedError(RunStoreError, PermissionError):
    """The path exists or could exist, and this process may not do that with it."""


class StorageFullError(RunStoreError, OSError):
    """No space, or no quota, is left: free some, then call again."""


class StorageIOError(RunStoreError, OSError):
    """The storage failed for another reason, named in the message and kept as the cause."""


class InvalidInputError(RunStoreError, ValueError):
    """An argument cannot be right: a path that escapes, a URI, a cursor, a range, a name."""


class UnstorableValueError(RunStoreError, TypeError, ValueError):
    """A value has no JSON form; the message names its key path. Nothing was written."""


class MalformedFileError(RunStoreError, ValueError):
    """A file that holds one document (config, log tree) cannot be read as that document."""


class EventLoopError(RunStoreError, RuntimeError):
    """The call cannot work on this thread or event loop; the message names the twin that can."""


class MissingDependencyError(RunStoreError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""
