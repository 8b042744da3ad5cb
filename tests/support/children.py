"""Child processes of tests: started in one line, and seen to end well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

import fiber
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


def be_elsewhere() -> None:
    """Have this process be on another host from now on, as far as it tells."""
    node = runtime.current()
    node._hello = values.evolve(node.hello, host="elsewhere")


def marked(mark: str) -> list[psutil.Process]:
    """Processes that have the mark as TEST_MARK in their environment, and have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("TEST_MARK") == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
