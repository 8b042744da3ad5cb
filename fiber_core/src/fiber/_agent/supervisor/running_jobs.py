"""What a supervisor holds of a job from its launch to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fiber._agent.supervisor.cgroup import Confinement
from fiber._agent.supervisor.devices import Grant
from fiber._agent.supervisor.jobs import Owner
from fiber._agent.supervisor.loop import Timer
from fiber._agent.supervisor.output import LineTail
from fiber._agent.supervisor.output_relay import LogFile, Relay
from fiber._agent.supervisor.spawn import Spawned
from fiber._base import values
from fiber.model import JobSpec

__all__ = ["Launch", "RunningJob", "RunningProcess"]


@values.frozen(kw_only=True)
class Launch:
    """A job that is to be started."""

    #: its id
    job_id: str
    #: what was asked for
    spec: JobSpec
    #: the whole environment of its processes
    environ: Mapping[str, str] = values.field(repr=False)
    #: their working directory
    cwd: str
    #: who asked
    owner: Owner
    #: called once: with "" when it runs, else with the reason why it cannot, and with warnings
    answer: Callable[[str, tuple[str, ...]], None]
    #: granted devices
    grants: tuple[Grant, ...] = ()
    #: True where it was accepted before, to wait: what fails then is its end, and no refusal
    accepted: bool = False


@values.define(kw_only=True)
class RunningProcess:
    """A process that was forked."""

    #: position within its job
    index: int
    #: its id and our ends of its pipes
    spawned: Spawned
    #: the last lines it wrote
    tail: LineTail
    #: readers of its output
    relays: list[Relay]
    #: True until it runs what was asked for, or has said why it does not
    reporting: bool = True
    #: what kept it from running
    failure: str = ""
    #: True where it is to be interrupted once it runs
    interrupted: bool = False


@values.define(kw_only=True)
class RunningJob:
    """A job of which something was started."""

    #: what was asked for
    launch: Launch
    #: where its output is kept
    log: LogFile
    #: its processes by index, as far as they were forked
    processes: dict[int, RunningProcess] = values.field(factory=dict)
    #: True once its submitter was told that it runs
    answered: bool = False
    #: why it could not be started, to be told once nothing is left of it
    refusal: str = ""
    #: the timer that kills it
    deadline: Timer | None = None
    #: its control groups
    confinement: Confinement | None = None
    #: limits that are not enforced
    warnings: tuple[str, ...] = ()
