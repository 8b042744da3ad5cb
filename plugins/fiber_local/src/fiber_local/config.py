"""Settings of the local backend."""

from __future__ import annotations

import sys
from typing import Literal

from fiber._base import values

__all__ = ["LocalConfig"]


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
