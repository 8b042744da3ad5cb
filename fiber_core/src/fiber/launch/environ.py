"""Which variables of ours a job gets besides what its platform gives it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.runtime import Runtime

# what there was when the program first used fiber; what it changed since is meant for its jobs
_at_first = dict(os.environ)


def job_environment(runtime: Runtime) -> dict[str, str]:
    """Settings, the variables listed in ``env``, and what the program has changed."""
    changed = {
        key: value
        for key, value in os.environ.items()
        if _at_first.get(key) != value or key in runtime.config.env
    }
    return {**changed, **runtime.config.to_environ(), "FIBER_BACKEND": runtime.info.name}
