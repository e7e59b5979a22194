"""Every error the dispatcher raises on purpose, in one tree.

DispatcherError
├── SettingsError           what the operator configured cannot work
├── CommandFailed           what a person asked for on the command line was not done
│   ├── TryAgain            it may be done in a moment
│   ├── MissingPackage      it needs a package of an extra that is not installed
│   └── InvalidFile         a file that a command reads is missing or malformed
├── StoreError              Postgres
│   ├── StoreForbidden      the account may not do it, or may not log in
│   ├── Fenced              this process is no longer the leader: nothing was written
│   ├── StoreUnavailable    the database did not answer; the outcome of a write is unknown
│   ├── SchemaMismatch      the database is not at the revision this code was written for
│   └── DataRefused         Postgres cannot hold this very data: nothing was written
├── IllegalTransition       the lifecycle table does not know this step: a defect, never an input
└── ClusterError            a Kubernetes API server
    ├── Unavailable         no answer, a timeout or 5xx; the outcome of a write is unknown
    │   ├── Throttled       429: nothing was done, come back after `retry_after`
    │   └── TooLarge        an answer beyond what we take in: it was not read
    ├── WriteForbiddenByFence   not sent at all: the lease may have run out
    └── Refused             an answer: nothing was done
        ├── Unauthorized    401: the credentials are not, or no longer, good
        ├── Forbidden       403
        ├── NotFound        404
        │   └── ImpossibleName  nothing can have that name: it was not asked for
        ├── Conflict        409, a version or uid precondition that did not hold
        │   └── AlreadyExists
        ├── Expired         410: the resource version is too old, list again
        └── Invalid         400, 413, 415, 422: the object itself is wrong

Adapters translate and chain (`raise … from error`); the controller catches by meaning. The text of a `ClusterError`
comes mostly from an API server. It is made one printable line here, because it is written to rows, statuses and logs.
"""

from __future__ import annotations

from dispatcher.text import name_of, one_line


class DispatcherError(Exception):
    """Base of everything raised on purpose."""


class SettingsError(DispatcherError):
    """The configuration cannot work; the message says what to change."""


class CommandFailed(DispatcherError):
    """A command failed; the message says why, and what to do."""

    exit_code = 1


class TryAgain(CommandFailed):
    """The database or the hub did not answer in time; the same command may work later."""

    exit_code = 3


class MissingPackage(CommandFailed):
    """The command needs a package that this installation lacks; the message names the extra that has it."""


class InvalidFile(CommandFailed):
    """A file that a command reads is missing or malformed; the message names the place."""

    exit_code = 2


class IllegalTransition(DispatcherError):
    """The lifecycle table has no such step: a defect in the caller."""


class StoreError(DispatcherError):
    """Postgres refused or failed."""


class Fenced(StoreError):
    """Another process leads, or our lease ran out: the transaction was not committed."""


class StoreUnavailable(StoreError):
    """The database did not answer; whether a write was committed is unknown."""


class StoreForbidden(StoreError):
    """Postgres does not let this account do it, or log in; a retry cannot help, another account can."""


class SchemaMismatch(StoreError):
    """The database is at another revision than this code was written for."""


class DataRefused(StoreError):
    """Postgres cannot store this data; nothing was written, and a retry cannot help."""


class ClusterError(DispatcherError):
    """A Kubernetes API server refused or failed; the message is one printable line."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class Unavailable(ClusterError):
    """No answer in time, a broken connection or a 5xx; whether a write happened is unknown."""


class Throttled(Unavailable):
    """429: nothing was done; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLarge(Unavailable):
    """An answer beyond `kube.bounds`, or compressed unasked: it was not read; whether a write happened is unknown."""


class WriteForbiddenByFence(ClusterError):
    """The request was not sent: our lease may have run out by now."""


class Refused(ClusterError):
    """The API server refused and did nothing. `reason` is the reason of its Status."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = name_of(reason)


class Unauthorized(Refused):
    """401: the credentials are invalid or expired."""


class Forbidden(Refused):
    """403: not allowed, over a quota, or the namespace is being deleted; see `reason` and message."""


class NotFound(Refused):
    """404: no such object, or no such kind (then `reason` is empty: the server does not know the path)."""


class ImpossibleName(NotFound):
    """A name that is no segment of a path: no object has it, and nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "NotFound")


class Conflict(Refused):
    """409: a precondition on the resource version or uid does not hold."""


class AlreadyExists(Conflict):
    """409 on create: an object of that name exists."""


class Expired(Refused):
    """410: the resource version is too old; list again."""


class Invalid(Refused):
    """400, 413, 415 or 422: the object itself is wrong and will stay so."""


def innermost(error: BaseException) -> BaseException:
    """The first error behind the groups that tasks wrap it in; the error itself if it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
