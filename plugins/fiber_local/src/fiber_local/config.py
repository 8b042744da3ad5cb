"""Settings of the local backend, and the durations that it waits for."""

from __future__ import annotations

import sys
from typing import Literal

from fiber._base import values
from fiber.model import Durations

__all__ = ["LocalConfig", "LocalTiming"]


@values.frozen(kw_only=True)
class LocalConfig:
    """Settings of the section ``[local]`` and of the variables ``FIBER_LOCAL_<KEY>``."""

    #: transport between processes: ``unix``; ``ipc``, the same through nng, for systems other than
    #: Linux; or ``tls`` over loopback, as between machines
    transport: Literal["unix", "ipc", "tls"] = "unix" if sys.platform == "linux" else "ipc"
    #: modules that the fork server imports once, so that every worker has them at no cost
    preload: tuple[str, ...] = ()
    #: seconds without jobs after which the fork server ends; the next job starts it again
    idle_exit: float = values.field(default=60.0, validator=values.ge(0.0))


@values.frozen(kw_only=True)
class LocalTiming(Durations):
    """Durations in seconds that the local backend waits for, besides the core's."""

    #: between two reads of the journals of other processes: not every system reports changes of files
    journal_check: float = 0.1
    #: between two reads of a growing log, likewise
    log_check: float = 0.1
    #: for the job of ``fiber doctor`` to end
    trial_job: float = 30.0
