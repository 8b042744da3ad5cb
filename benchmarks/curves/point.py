"""One point of a curve, measured by a program of its own, within limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.measure import ROOT


class PointError(Exception):
    """A point could not be measured; the text says why."""


def measure(module: str, arguments: Mapping[str, Any], patience: float) -> dict[str, Any]:
    """Call ``module.point(**arguments)`` in a new program.

    Raises:
        PointError: it failed, or took longer than ``patience`` seconds.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    argv = [sys.executable, "-m", "benchmarks.curves.point", module, json.dumps(arguments)]
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            msg = f"no answer within {patience:.0f} s"
            raise PointError(msg) from None
        finally:
            # multiprocessing's workers outlive a master that was killed; they are of its session
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise PointError(errors[-2000:])
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def main() -> None:
    import importlib

    module, arguments = sys.argv[1:]
    print(json.dumps(importlib.import_module(module).point(**json.loads(arguments))))


if __name__ == "__main__":
    main()
