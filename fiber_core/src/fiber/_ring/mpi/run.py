"""Entry point of a run of ``mpirun``: connects it to this process's streams and signals."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Iterator

from fiber._base import values
from fiber._base.threads import ending_signals
from fiber._ring.controller import RingController
from fiber._ring.model import Group, Policy
from fiber._ring.mpi.arguments import RunSpec
from fiber._ring.mpi.protocol import MpiProtocol
from fiber._ring.mpi.rank_monitor import Verdict
from fiber._ring.timing import MpiTiming, RingTiming
from fiber._runtime import runtime
from fiber.exceptions import FiberError
from fiber.process import requested

__all__ = ["gang", "run"]

_CHUNK_SIZE = 64 * 1024


def gang(plan: RunSpec, timing: MpiTiming) -> tuple[list[Group], Policy]:
    """Return the workers of a run, one for each job, and their policy.

    A member whose output nobody reads is silent for as long as that takes, so there is no limit to its
    silence; the end of its job is noticed as that of any.
    """
    groups = [
        Group(
            workers=1,
            slots=len(names),
            resources=need.resources,
            image=need.image,
            volumes=need.volumes,
            name=names[-1],
        )
        for names, need in plan.jobs().items()
    ]
    policy = Policy(
        start_timeout=plan.start_timeout,
        deadline=plan.deadline,
        heartbeat=math.inf,
        halts=True,
        timing=values.evolve(RingTiming.at(timing.scale), grace=timing.end),
    )
    return groups, policy


def run(plan: RunSpec) -> Verdict:
    """Run mpirun to its end with this process's standard streams, and return its outcome.

    Raises:
        FiberError: mpirun was not started; the text has the reason, and all jobs have ended.
    """
    current = runtime.current()
    timing = MpiTiming.at(current.timing.scale)
    groups, policy = gang(plan, timing)
    protocol = MpiProtocol(plan, output=_write, timing=timing)
    groups = [values.evolve(one, resources=requested(one.resources, current)) for one in groups]
    controller = RingController(current, groups, policy, protocol)
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)
        # on a thread of its own: the handler may have interrupted what it would wait for
        action = lambda: controller.post(lambda: protocol.interrupted(number))  # noqa: E731
        threading.Thread(target=action, name="fiber-mpirun-signal").start()

    with ending_signals(handle), contextlib.ExitStack() as stack:
        stack.callback(controller.close)
        stack.enter_context(_input(protocol))
        controller.start()
        controller.outcome.wait()
        controller.wait_closed(policy.timing.heartbeat + policy.timing.end)
    failure = controller.outcome.failure
    if protocol.verdict is not None:
        return protocol.verdict
    if received:
        return Verdict(128 + received[0], is_asked=True)
    assert failure is not None, "what succeeds has a verdict"
    raise failure.error if isinstance(failure.error, FiberError) else FiberError(failure.message)


@contextlib.contextmanager
def _input(protocol: MpiProtocol) -> Iterator[None]:
    """Forward standard input to mpirun while the block runs."""
    ending, end = os.pipe()
    thread = threading.Thread(
        target=_read, args=(protocol, ending), name="fiber-mpirun-input", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        # where mpirun was never started too
        protocol.started.set()
        os.write(end, b"x")
        thread.join()
        os.close(ending)
        os.close(end)


def _read(protocol: MpiProtocol, ending: int) -> None:
    protocol.started.wait()
    poll = select.poll()
    poll.register(ending, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        if any(descriptor == ending for descriptor, _ in poll.poll()):
            return
        try:
            data = os.read(0, _CHUNK_SIZE)
        except OSError:
            data = b""
        protocol.feed(data)
        if not data:
            return


def _write(stream: int, data: bytes) -> None:
    # the reader may have gone; the run goes on
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(stream, data) :]
