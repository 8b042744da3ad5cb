"""The examples as users run them, on the backend that their environment names."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from commands import ran
from require import need_module

_EXAMPLES = Path(__file__).parents[2] / "examples"


def _run(folder: Path, environ: Mapping[str, str], name: str, *words: str) -> str:
    """Run an example in a folder; returns its output."""
    done = ran(
        [sys.executable, _EXAMPLES / f"{name}.py", *words],
        cwd=folder,
        env={**environ, "MPLBACKEND": "Agg"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def check_pi(folder: Path, environ: Mapping[str, str]) -> None:
    """A pool estimates pi."""
    (found,) = re.findall(r"pi is about ([\d.]+)", _run(folder, environ, "pi_estimation"))
    assert abs(float(found) - 3.14159) < 0.01


def check_policy(folder: Path, environ: Mapping[str, str]) -> None:
    """A policy is the same bit for bit as on this machine, though workers are killed."""
    for module in ("gymnasium", "numpy", "matplotlib"):
        need_module(module)

    def digest(*more: str, **changes: str) -> tuple[str, int]:
        # so few generations need not solve the task
        words = ("--seed", "3", "--workers", "3", "--generations", "12", "--go-on", *more)
        output = _run(folder, {**environ, **changes}, "es_cartpole", *words)
        (found,) = re.findall(r"sha256 of the parameters: (\w+)", output)
        (killed,) = re.findall(r"(\d+) workers killed", output)
        return found, int(killed)

    undisturbed, _ = digest(FIBER_BACKEND="local")
    disturbed, killed = digest("--chaos")
    assert killed > 0
    assert disturbed == undisturbed
