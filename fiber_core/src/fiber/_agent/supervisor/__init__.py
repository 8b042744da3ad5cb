"""The supervisor: forks and watches the processes of jobs, and runs no user code of its own.

A supervisor is a single-threaded process that never opens a network socket. It speaks frames of
:mod:`~fiber._agent.supervisor.messages` over stream sockets that its peers inherited from it or
from whoever started it; holding such a descriptor is the proof of belonging, so nothing listens.
"""

from fiber._agent.supervisor.inherited import (
    Inheritance,
    claim_channel,
    inherited_channel,
    release_channel,
)

__all__ = ["Inheritance", "claim_channel", "inherited_channel", "release_channel"]
