"""Durations that Fiber waits for, as one value of a run, so that no module has seconds of its own.

``Timing`` is the core's. A backend declares a subclass of ``Durations`` for its platform's and makes
it with ``BackendTiming.at(context.timing.scale)``. Settings of a run, such as ``lease``, are not in
here: they hold as the user gave them, whatever the scale. Left to their modules are delays of
milliseconds by which messages are gathered: they are part of a protocol's efficiency, and nobody
waits for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fiber._base import values

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Durations", "Timing"]


@values.frozen(kw_only=True)
class Durations:
    """Durations in seconds, which one scale multiplies; subclasses add fields with defaults."""

    #: factor that all other fields have been multiplied by
    scale: float = 1.0

    @classmethod
    @functools.lru_cache(maxsize=32)
    def at(cls, scale: float) -> Self:
        """Make the defaults of all durations, multiplied by a positive factor."""
        unscaled = cls()
        if scale == 1.0:
            return unscaled
        scaled: dict[str, Any] = {
            name: tuple(scale * each for each in value)
            if isinstance(value, tuple)
            else scale * value
            for name, value in values.asdict(unscaled).items()
        }
        return cls(**scaled)


@values.frozen(kw_only=True)
class Timing(Durations):
    """Durations of the core; a field is here once for all who wait for the same thing."""

    def __repr__(self) -> str:
        # sixty numbers would drown whatever they are shown in: the scale, and what differs from it
        usual = values.asdict(type(self).at(self.scale))
        shown = {"scale": self.scale} if self.scale != 1.0 else {}
        shown.update((k, v) for k, v in values.asdict(self).items() if v != usual[k])
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    # -- signs of life

    #: between two signs of life, and between two checks of those of others
    heartbeat: float = 1.0
    #: by which a check may be late before it takes its own process for the slow one
    lateness: float = 1.0
    #: of silence after which a peer on this host is given up, whose end closes its connection
    local_silence: float = 30.0
    #: of silence on a stream into a job after which a sign of life is sent
    stream_heartbeat: float = 5.0
    #: of silence on such a stream after which it is taken for broken
    stream_silence: float = 15.0

    # -- until a connection is there

    #: to reach a listener, and between two frames of a peer's handshake
    handshake: float = 10.0
    #: for a refused peer to read the reason before it is disconnected
    refusal: float = 1.0
    #: without accepting, after there was no descriptor for a connection
    accept_pause: float = 0.1
    #: between two checks of connections that nng does not report as broken, and while they are many
    nng_check: float = 1.0
    nng_check_busy: float = 0.1
    #: for a process to reach its parent, which listens already
    dial: float = 3.0
    #: for a job elsewhere to reach its parent for the first time, at least
    first_dial: float = 10.0
    #: between two attempts of a job to reach its parent, and to make a connection that ended in its greeting
    redial: float = 0.2
    #: for an answer on a stream into a job that is being opened
    stream_answer: float = 10.0
    #: for the first words on such a stream
    stream_greeting: float = 5.0
    #: until the next attempts to open one
    stream_backoff: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0)
    #: for an address to take a connection
    connect: float = 5.0

    # -- until something has ended

    #: from SIGTERM to SIGKILL when a lease ends
    lease_grace: float = 2.0
    #: of the platform's own grace, kept back for reports at most
    grace_reserve: float = 2.0
    #: for killed processes to end; one in an uninterruptible call takes for ever
    kill: float = 5.0
    #: for a supervisor to carry out a SIGKILL before the platform is asked to
    remote_kill: float = 3.0
    #: from SIGTERM to SIGKILL after Ctrl-C in a command that follows a job
    interrupt_grace: float = 5.0
    #: for a job's submission to return after Ctrl-C, so that there is a job to ask about
    submission: float = 1.0
    #: for a job's first event, before it is ended without one
    first_event: float = 5.0
    #: for a platform to confirm the end of a job that is not connected, or was killed
    unconfirmed: float = 30.0
    #: for which jobs go elsewhere than to a host that was lost
    avoid_lost_host: float = 300.0
    #: for a last report to arrive while there is a connection, and after the platform reported the end
    report: float = 3.0
    report_after_end: float = 0.5
    #: for the platform to say why, after a report of an end by a signal that nobody in the run sent
    platform_reason: float = 3.0
    #: for a parent out of reach before processes get SIGTERM without it
    parent_answer: float = 1.0
    #: without a byte taken, after which a terminal or peer is left behind at the end
    flush: float = 2.0
    #: for the last lines of a job to be written
    output: float = 1.0
    #: for which the beginning of a line is kept back
    partial_line: float = 0.1
    #: for a supervisor to come up, and for the import of each module of ``preload``
    supervisor_start: float = 120.0
    #: for its imports until the user is told what is being imported
    import_notice: float = 30.0
    #: for it to end once it has announced that
    supervisor_exit: float = 10.0
    #: for a process to answer an interrupt; one that was stopped gives none
    interrupt_answer: float = 1.0
    #: between attempts to remove a control group whose killed members have not ended
    cgroup_retry: float = 0.05
    #: between looks for devices that other runs on a host have, while a job waits for some
    device_retry: float = 1.0
    #: for an owner of shared objects to receive the messages of a process that exits
    farewell: float = 60.0
    #: after which an unused connection or thread of shared objects is closed
    idle: float = 1.0
    #: after which an idle thread of a manager ends, unless something may be bound to it
    idle_thread: float = 30.0
    #: for the handler thread to count what was let go of a managed object
    settle: float = 5.0

    # -- workers

    #: between two checks of the size of an elastic group
    autoscale: float = 0.25
    #: until the next attempts after workers that ended before they were up
    worker_backoff: tuple[float, ...] = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
    #: of a task after which its worker reads messages from the pool besides
    unread: float = 0.05
    #: from the end of a worker's connection to its kill, where no exit was reported
    exit_report: float = 2.0
    #: after which a worker that was killed and has not ended is killed again
    kill_again: float = 5.0
    #: for the killed workers of a pool to have ended, and for the callback that runs as it ends
    worker_exit: float = 10.0
    callback: float = 1.0
    #: for tasks of a call whose caller was interrupted to end, before their workers are replaced
    interrupted: float = 0.5
    #: that a worker waits for its place, is suspended or does not end, before that is logged, and
    #: until the next such report
    wait_report: float = 5.0
    wait_report_again: float = 60.0

    # -- until somebody sees something

    #: between two looks at the progress of a call that somebody wants to see
    progress: float = 0.25
    #: between two lines of it, where they are not shown in one place
    progress_line: float = 10.0
    #: between two searches for jobs that can tell of runs on their hosts
    job_search: float = 10.0
    #: for such a job to be found, or to answer: a program starts there
    job_answer: float = 15.0
    #: between two looks at a run that somebody has on a page
    look: float = 1.0
    #: for which what a worker elsewhere told of its memory is good enough
    memory_look: float = 5.0
    #: of a task, before it can be told to be slow
    slow_task: float = 1.0

    # -- platforms that cannot be asked

    #: for which attempts are repeated
    outage: float = 60.0
    #: between attempts; no event announces that a platform is back
    outage_backoff: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0)
    #: after which the user gets a notice
    outage_notice: float = 5.0
