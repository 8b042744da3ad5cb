"""Many workers in few processes, so that one machine shows what a master does with thousands.

Each has a connection of its own, with the handshake and the protocol of any worker, and runs the
code of a worker; a process has hundreds of them and runs whichever has something to do. What they
lack is a process each, its memory, and the thread that looks after long tasks.
"""

from __future__ import annotations

import contextlib
import resource
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fiber._agent import instructions as job_instructions
from fiber._agent.instructions import Instructions
from fiber._base.threads import CallbackThread
from fiber._runtime import runtime
from fiber._tasks import protocol
from fiber._tasks.dispatcher import Dispatcher
from fiber._tasks.protocol import Mode
from fiber._tasks.worker import Worker
from fiber._wire.frames import Kind
from fiber._wire.handshake import Hello
from fiber.exceptions import PeerLostError
from fiber.results import MapResult

#: processes that the workers share; as many as leave the master a CPU are enough
HOSTS = 4


class Swarm:
    """A pool of such workers, with its own master; see :func:`swarm`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """The results in order; tasks travel in batches, as those of ``Pool.map`` do."""
        return self._map(function, items, retry=True)

    def map_singly(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """The same with one task a message, as those that must not run twice travel."""
        return self._map(function, items, retry=False)

    def _map(self, function: Any, items: Sequence[Any], *, retry: bool) -> list[Any]:
        result: MapResult[Any] = MapResult(len(items), CallbackThread("unused"))
        call = self.dispatcher.prepare(function, Mode.MAP, result, items=items, retry=retry)
        self.dispatcher.add(call)
        return result.get()


class _Observer:
    """Employs whoever proves to be of this run."""

    def accepts(self, ident: str) -> bool:
        return True

    def has_ended(self, ident: str) -> bool:
        return False

    def worker_ready(self, ident: str) -> None:
        """Nobody waits for it by name."""

    def initializer_failed(self, ident: str, error: BaseException) -> None:
        raise error

    def worker_disconnected(self, ident: str) -> None:
        """They end all at once."""

    def worker_retired(self, ident: str) -> None:
        """As above."""


@contextlib.contextmanager
def swarm(workers: int, patience: float = 60.0) -> Iterator[Swarm]:
    """That many workers, once all have asked for work.

    Raises:
        TimeoutError: not all have after ``patience`` seconds.
    """
    current = runtime.current()
    target = current.new_target()
    dispatcher = Dispatcher(
        target, current.reactor, max_attempts=3, maxtasksperchild=None, observer=_Observer()
    )
    current.endpoint.serve(target, dispatcher)
    hosts = []
    try:
        for number in range(HOSTS):
            count = len(range(number, workers, HOSTS))
            if count:
                hosts.append(_host(current, number, count, target))
        _wait_for(dispatcher, workers, patience)
        yield Swarm(dispatcher)
    finally:
        dispatcher.end(RuntimeError("the swarm has ended"))
        current.endpoint.withdraw(target)
        for host in hosts:
            with host:
                host.kill()
        dispatcher.close()


def _wait_for(dispatcher: Dispatcher, workers: int, patience: float) -> None:
    import time

    deadline = time.monotonic() + patience
    while dispatcher.table.idle < workers:
        if time.monotonic() > deadline:
            msg = f"{dispatcher.table.idle} of {workers} workers are up after {patience:.0f} s"
            raise TimeoutError(msg)
        time.sleep(0.02)


def _host(current: Any, number: int, count: int, target: int) -> subprocess.Popen[bytes]:
    instructions = Instructions(
        credentials=current.credentials,
        urls=tuple(current.urls()),
        ident=f"swarm{number}",
        directory=str(current.directory),
        processes=count,
        max_frame=current.config.max_frame,
    )
    argv = [sys.executable, "-m", "benchmarks.swarm", str(target)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(instructions.encode())
    process.stdin.close()
    return process


class _Nobody:
    """Looks after no long task: the workers of a process run one after another anyway."""

    def watch(self, *_: object) -> None:
        """Nothing."""

    def rest(self) -> None:
        """Nothing."""


class _Worker(Worker):
    """One that is told when its link has something."""

    def __init__(self, instructions: Instructions, index: int, target: int) -> None:
        hello = Hello.mine(instructions.ident_of(index))
        self.link = job_instructions.dial(instructions, hello)
        super().__init__(self.link, target, self._never, timing=instructions.timing)
        self._control_reader = _Nobody()  # type: ignore[assignment] # all that is asked of it

    def begin(self) -> None:
        self._ask(protocol.CREDITS)

    def go_on(self) -> None:
        """Do all that is there."""
        while True:
            message = self._inbox.popleft() if self._inbox else self.link.receive(timeout=0)
            if message is None:
                return
            if message.kind is Kind.TASKS:
                self._run(message.body)
            elif message.kind is Kind.FUNCTION:
                self._store_function(message)
            else:
                self._answer(message)

    def _never(self) -> Any:
        msg = "the master is gone"
        raise PeerLostError(msg)


def main() -> None:
    """Run as many workers as the instructions on the standard input say, until the master goes."""
    instructions = Instructions.decode(sys.stdin.buffer.read())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    target = int(sys.argv[1])
    poll = select.epoll()
    by_fd: dict[int, _Worker] = {}
    for index in range(instructions.processes):
        worker = _Worker(instructions, index, target)
        for fd in worker.link.fds:
            poll.register(fd, select.EPOLLIN)
            by_fd[fd] = worker
        worker.begin()
    with contextlib.suppress(PeerLostError):
        while True:
            for fd, _ in poll.poll():
                by_fd[fd].go_on()


if __name__ == "__main__":
    main()
