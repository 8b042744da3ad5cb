"""Child processes of tests: started in one line, and seen to end well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fiber
from fiber._base import values
from fiber._runtime import runtime

#: seconds for what a busy machine may take long to do; nothing waits for them in vain
PATIENCE = 60


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
