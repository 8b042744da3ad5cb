"""Rings: groups of equal members with ranks that start, run and end together.

A ring has *workers*, each one job with one or more *slots*; each slot is a *member* with a *rank*.
All workers run or none does. Once all are up they meet in a *rendezvous*: every member dials every
other, so that only addresses that work are used; then ranks are assigned, the framework's servers
open in rank 0, and user code begins. One assignment of ranks is a *round*. The first failure ends a
round; the policy decides whether another one follows. In a *live* ring members may come and go
while a round goes on.

Invariants:

* The state machine is pure: no clock, thread or socket. Time goes in with each event, effects come
  out as commands. One owner feeds it, under a lock.
* The numbers of workers and rounds are never used again, so a late event of an earlier one is
  recognized and ignored.
* Ranks are contiguous on each host; rank 0's process hosts whatever all members need.
* Whatever a ring has started is ended: by the machine, at the program's end by the controller, and
  after the program's death by the supervisor of its host and the leases of remote jobs.

Threads of the process that runs a ring: ``fiber-ring-controller`` runs the event loop and carries
out commands, ``fiber-ring-job`` (a pool) makes blocking calls to the platform, and
``fiber-ring-rank0`` is the caller's own rank, if it has one. Threads of a member: its function's,
``fiber-ring-receiver`` for messages and heartbeats, ``fiber-ring-probe`` until the member is ready,
and ``fiber-ring-background`` for replies while user code runs.

Users call :class:`~fiber._ring.ring.Ring` through :mod:`fiber.experimental`, and ``fiber ring``
through :mod:`fiber._ring.command_rings`. The package calls the runtime's launcher for jobs,
:mod:`fiber.connection` for pipes and :mod:`fiber._wire` for listeners; nothing below calls it.

* ``ring``: the public class; ``model``, ``view``: most other public names.
* ``machine``, ``membership``, ``events``: the state machine.
* ``controller``, ``workers``, ``rendezvous``: what feeds the machine and carries out its commands.
* ``member``, ``protocol``: the members, and the messages between them and the controller.
* ``reachability``: who can dial whom, here and among the members of ``mpi``.
* ``frameworks``, ``forwarding``: distributed training in the members with the contract of its
  frameworks, and tunnels to its servers.
* ``command_rings``: rings of commands; ``mpi``: the user's own ``mpirun`` on jobs, which are a gang
  of the same machine and controller, with a protocol of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._ring.frameworks import RingFramework


def built_in_frameworks() -> Iterable[RingFramework]:
    """Return the core's frameworks, which a program without rings does not import."""
    from fiber._ring.frameworks.horovod import Horovod
    from fiber._ring.frameworks.others import MPI, Jax, MXNet, TensorFlow, XGBoost
    from fiber._ring.frameworks.torch import DeepSpeed, Torch

    return [DeepSpeed(), Horovod(), Jax(), MPI(), MXNet(), TensorFlow(), Torch(), XGBoost()]
