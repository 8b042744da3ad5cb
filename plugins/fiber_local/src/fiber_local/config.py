"""Settings of the local backend."""

from __future__ import annotations

import sys
from typing import Literal

from fiber._base import values

__all__ = ["LocalConfig"]


@values.frozen(kw_only=True)
class LocalConfig:
    """What ``FIBER_LOCAL_<KEY>`` and the section ``[local]`` can set."""

    #: how processes talk: ``unix``; ``ipc``, the same through nng, for systems that are not Linux;
    #: or ``tls`` to talk over loopback as machines do with each other
    transport: Literal["unix", "ipc", "tls"] = "unix" if sys.platform == "linux" else "ipc"
    #: modules that the fork server imports once, so that every worker has them at no cost
    preload: tuple[str, ...] = ()
    #: seconds without jobs after which the fork server ends; the next job starts it again
    idle_exit: float = values.field(default=1.0, validator=values.ge(0.0))
