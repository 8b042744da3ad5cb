"""Child processes of tests: started in one line, and seen to end well."""

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil

import fiber
import process_signals
from fiber._base import values
from fiber._runtime import runtime
from waiting import PATIENCE


def start(target: Callable[..., Any], *args: Any) -> fiber.Process:
    """A child that runs ``target(*args)``."""
    child = fiber.Process(target=target, args=args)
    child.start()
    return child


def finish(*children: fiber.Process) -> None:
    """Wait for children, which have to end by themselves and well."""
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0, f"{child.name} ended with {child.exitcode}"


def killed(child: fiber.Process) -> None:
    """Kill a child behind Fiber's back, and wait until it is gone."""
    process_signals.kill(child)
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL


@contextlib.contextmanager
def killed_meanwhile(
    child: fiber.Process, rng: random.Random, *, latest: float = 0.05
) -> Iterator[None]:
    """Kill a child at some moment of the block, and end the block when it is gone."""
    # the pace is random, not waiting for anything: faults come when they come
    killing = threading.Timer(rng.uniform(0, latest), killed, (child,))
    killing.start()
    yield
    killing.join()


class Crew:
    """Children with a number each, which is taken by another one where one was killed.

    Args:
        count: how many there are.
        begin: starts the one with a number.
    """

    def __init__(self, count: int, begin: Callable[[int], fiber.Process]) -> None:
        self._begin = begin
        self.children = [begin(number) for number in range(count)]

    def kill(self, number: int) -> None:
        """Kill the child with a number."""
        killed(self.children[number])

    def replace(self, number: int) -> None:
        """Start another one in place of one that was killed."""
        self.children[number] = self._begin(number)

    def close(self) -> None:
        """End them."""
        for child in self.children:
            child.kill()
        for child in self.children:
            child.join(PATIENCE)


def be_elsewhere() -> None:
    """Have this process be on another host from now on, as far as it tells."""
    node = runtime.current()
    node._hello = values.evolve(node.hello, host="elsewhere")


def marked(mark: str) -> list[psutil.Process]:
    """Processes that have the mark as TEST_MARK in their environment, and have not ended."""
    return list(process_signals.with_variable("TEST_MARK", mark))
