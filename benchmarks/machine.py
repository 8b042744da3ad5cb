"""What a figure depends on: machine, load, versions."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import contenders


def describe() -> dict[str, Any]:
    """The machine and the software, as JSON takes them."""
    return {
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": contenders.versions(),
        "command": _command(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _command() -> list[str]:
    spec = sys.modules["__main__"].__spec__
    name = "benchmarks" if spec is None else spec.name.removesuffix(".__main__")
    return ["python", "-m", name, *sys.argv[1:]]


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
