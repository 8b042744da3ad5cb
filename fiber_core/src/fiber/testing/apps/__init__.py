"""User programs for the backend kit: each is copied to an empty folder and run as a script there.

Their run and their results are lines of JSON on their output.
"""

from __future__ import annotations

import json
import os
from typing import Any

from fiber.testing.witness import RUN_VARIABLE

__all__ = ["begin", "print_facts"]


def begin() -> str:
    """Print this program's run, and put it into the environment of all that it starts."""
    from fiber._runtime import runtime

    run_id = runtime.current().run_id
    # jobs inherit the program's environment
    os.environ[RUN_VARIABLE] = run_id
    print_facts(run=run_id)
    return run_id


def print_facts(**facts: Any) -> None:
    """Print facts as a line of JSON, which the kit reads."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - the kit reads it
