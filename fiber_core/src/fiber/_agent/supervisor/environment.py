"""The environment of a job's processes; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fiber.model import JobSpec

__all__ = ["THREAD_COUNTS", "environment"]

#: how numerical libraries are told how many threads they may use
THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment(inherited: Mapping[str, str], spec: JobSpec) -> dict[str, str]:
    """What a job inherits, less and more what its spec says.

    Libraries count the machine's CPUs and start as many threads; a job that was given fewer is
    told so, unless its user has said something else.
    """
    result = {key: value for key, value in inherited.items() if key not in spec.unset_env}
    result.update(spec.env)
    if spec.resources.cpu is not None:
        count = str(max(1, math.ceil(spec.resources.cpu)))
        for name in THREAD_COUNTS:
            result.setdefault(name, count)
    return result
