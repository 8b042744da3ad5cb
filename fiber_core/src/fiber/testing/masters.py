"""What the kit's programs of users share: they say who they are, and what came of it, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from fiber.testing.witness import RUN_VARIABLE

__all__ = ["begin", "tell"]


def begin() -> str:
    """Mark all that this program will start with its run, and say which one it is."""
    from fiber._runtime import runtime

    run_id = runtime.current().run_id
    # what a program changes in its environment reaches its jobs
    os.environ[RUN_VARIABLE] = run_id
    tell(run=run_id)
    return run_id


def tell(**facts: Any) -> None:
    """Print facts as a line of JSON."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - the kit reads it
