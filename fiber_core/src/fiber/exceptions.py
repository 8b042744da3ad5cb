"""Every exception that Fiber raises.

::

    FiberError
     ├─ ConfigError                  a setting is wrong (also ValueError)
     ├─ PluginError                  a plugin is wrong
     │   ├─ PluginClashError           two distributions offer the same name
     │   └─ PluginVersionError         written for another version of the API
     ├─ BackendError
     │   ├─ UnknownBackendError        no plugin offers that name
     │   ├─ BackendNotInstalledError   published, but not installed
     │   ├─ BackendUnavailableError    the platform could not be asked
     │   ├─ CapabilityError            the backend does not do that
     │   ├─ AmbiguousImageError        a folder describes several images
     │   ├─ SubmitError                the platform refused a job
     │   ├─ UnknownJobError            the platform does not know that job
     │   └─ StartError                 a job was accepted and never came up
     ├─ ResourceError                devices cannot be found or granted
     ├─ TransportError               (also OSError)
     │   ├─ HandshakeError             the two sides do not trust or understand each other
     │   ├─ WireError                  a malformed frame
     │   └─ PeerLostError              the other side is gone (also EOFError, ConnectionError)
     │       └─ LeaseLostError           and with it a lock that this process held
     ├─ HolderDiedError              a lock's holder died, and on_holder_death is "raise"
     ├─ ForkedError                  fiber was used in a process forked by user code
     ├─ TerminatedError              the pool was terminated first (also ProcessError)
     └─ WorkerCrashedError           a task ended its workers; holds the attempts and the results

    HolderDiedWarning (a RuntimeWarning): a lock's holder died, and the lock was passed on

Where multiprocessing has an exception (``TimeoutError``, ``ProcessError``, ``MaybeEncodingError``,
``queue.Empty``, ``EOFError``), Fiber raises that very class.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import ProcessError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber.model.job import Attempt

__all__ = [
    "AmbiguousImageError",
    "BackendError",
    "BackendNotInstalledError",
    "BackendUnavailableError",
    "CapabilityError",
    "ConfigError",
    "FiberError",
    "ForkedError",
    "HandshakeError",
    "HolderDiedError",
    "HolderDiedWarning",
    "LeaseLostError",
    "PeerLostError",
    "PluginClashError",
    "PluginError",
    "PluginVersionError",
    "ResourceError",
    "StartError",
    "SubmitError",
    "TerminatedError",
    "TransportError",
    "UnknownBackendError",
    "UnknownJobError",
    "WireError",
    "WorkerCrashedError",
]


class FiberError(Exception):
    """Base class of Fiber's own exceptions."""


class ConfigError(FiberError, ValueError):
    """A setting is unknown or invalid; the text names the key, its origin and the allowed values."""


class PluginError(FiberError):
    """A plugin is broken; the text names its distribution."""

    def __init__(self, message: str, *, plugin: str = "") -> None:
        super().__init__(message)
        #: distribution, or registered name, of the plugin
        self.plugin = plugin


class PluginClashError(PluginError):
    """Two distributions offer the same name."""


class PluginVersionError(PluginError):
    """A plugin was written for another version of the backend API."""


class BackendError(FiberError):
    """Base class of errors of a backend or its jobs."""


class UnknownBackendError(BackendError):
    """No installed plugin offers a backend of that name."""


class BackendNotInstalledError(BackendError):
    """A backend of that name is published, but its distribution is not installed."""


class BackendUnavailableError(BackendError):
    """The platform could not be asked."""


class CapabilityError(BackendError):
    """The backend does not support an operation, or an option of a job."""

    def __init__(self, backend: str, capability: str, what: str) -> None:
        super().__init__(backend, capability, what)
        #: name of the backend
        self.backend = backend
        #: field of :class:`~fiber.model.Capabilities` that is not declared
        self.capability = capability
        #: the operation or option
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is not supported by {self.backend} (capability {self.capability!r})"


class AmbiguousImageError(BackendError):
    """A folder describes several images, and none was chosen."""

    def __init__(self, folder: str, candidates: Sequence[str]) -> None:
        super().__init__(folder, candidates)
        #: the folder
        self.folder = folder
        #: names of the files that describe one each
        self.candidates = tuple(candidates)

    def __str__(self) -> str:
        names = ", ".join(self.candidates)
        return (
            f"{self.folder} describes several images: {names}; name the one that is meant "
            f"(fiber run --image-file {self.candidates[0]}), or an image that exists (--image)"
        )


class SubmitError(BackendError):
    """The platform refused a job; the text has the platform's own message."""


class UnknownJobError(BackendError):
    """The platform does not know that job."""


class StartError(BackendError):
    """A job was accepted but its process never connected; the text has the reason."""


class ResourceError(FiberError):
    """Devices cannot be found, read or granted."""


class TransportError(FiberError, OSError):
    """Base class of errors of a connection."""


class HandshakeError(TransportError):
    """The two sides do not trust or do not understand each other; the text names both and the fix."""

    #: True where the other side proved who it is, and only the versions disagree
    proven: bool = False


class WireError(TransportError):
    """A malformed frame was received; the connection to its sender is closed."""


class PeerLostError(TransportError, ConnectionError, EOFError):
    """The process at the other end is gone."""


class LeaseLostError(PeerLostError):
    """The connection to a lock's owner was lost while this process held it; others may hold it now."""


class HolderDiedError(FiberError):
    """A process died while it held a lock; the guarded state may be inconsistent."""


class HolderDiedWarning(RuntimeWarning):
    """A process died while it held the lock that was just acquired; see HolderDiedError."""


class ForkedError(FiberError, RuntimeError):
    """Fiber was used in a process forked by user code; start it with fiber.Process."""


class TerminatedError(FiberError, ProcessError):
    """The pool was terminated before the task was done."""


class WorkerCrashedError(FiberError):
    """A task's workers died while it was alone on them, ``max_attempts`` times."""

    def __init__(
        self,
        message: str,
        *,
        attempts: Sequence[Attempt] = (),
        results: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(message)
        #: one entry a death: worker, host, reason, last log lines
        self.attempts = tuple(attempts)
        #: for ``map``: the results by position, with this error (or the task's own) where one failed
        self.results = results

    def __reduce__(self) -> Any:
        return _rebuild_crash, (str(self), self.attempts)


def _rebuild_crash(message: str, attempts: Sequence[Attempt]) -> WorkerCrashedError:
    return WorkerCrashedError(message, attempts=attempts)
