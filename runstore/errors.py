"""The error tree: one root, and leaves named for what the handler does about them; and the warnings.

Each leaf is also the builtin exception that code without this package would catch
(`FileNotFoundError`, `PermissionError`, `ValueError` …). Errors of other libraries are
translated at the edge of a backend and kept as `__cause__`.
"""

__all__ = [
    "AccessDeniedError",
    "BucketNotFoundError",
    "BucketWarning",
    "CredentialsError",
    "EventLoopError",
    "InvalidInputError",
    "MalformedFileError",
    "MissingDependencyError",
    "NotFoundError",
    "RunStoreError",
    "RunStoreWarning",
    "SpoolKeptWarning",
    "StorageFullError",
    "StorageIOError",
    "UnavailableError",
    "UnstorableValueError",
    "UploadDelayedWarning",
]


class RunStoreError(Exception):
    """Root of every error that this package raises on purpose."""


class NotFoundError(RunStoreError, FileNotFoundError):
    """There is no file at this path. Nothing else is reported this way."""


class AccessDeniedError(RunStoreError, PermissionError):
    """The path exists or could exist, and this process may not do that with it."""


class CredentialsError(RunStoreError, PermissionError):
    """The server does not take these credentials: they are missing, wrong or expired. Renew them."""


class BucketNotFoundError(RunStoreError, OSError):
    """The bucket does not exist. It is never created: correct its name, or make it with your own tools."""


class UnavailableError(RunStoreError, ConnectionError):
    """The server cannot be reached, or does not answer for now: try again later.

    What was appended is kept on the local disk meanwhile.
    """


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


class RunStoreWarning(UserWarning):
    """Root of every warning that this package gives."""


class UploadDelayedWarning(RunStoreWarning):
    """Appends cannot be uploaded for now: they wait on the local disk, and are tried again by themselves."""


class SpoolKeptWarning(RunStoreWarning):
    """Appends stay on the local disk, in the file that the message names, and what delivers them."""


class BucketWarning(RunStoreWarning):
    """The bucket works otherwise than appends need, and costs money or safety; the message says how."""
