#!/usr/bin/env python3
"""Tests on a Python that is newer than this machine's: that of Debian's next suite, in a folder.

``python .ci/python314.py [--cache FOLDER] -- PYTEST ARGUMENTS``, as root; where these name no tests, it
is those of the core and the backends, several at once. The distributions are installed from wheels of
this checkout.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from debian_root import ROOT, DebianRoot, MissingError, files_of_checkout

PYTHON = "python3.14"
PACKAGES = (
    *(PYTHON, f"{PYTHON}-venv", f"lib{PYTHON}-testsuite", "python3", "ca-certificates", "procps"),
    # hosts of the tests, an engine and a registry
    *("openssh-server", "openssh-client", "iptables", "iproute2", "docker.io", "docker-registry"),
)
#: what tox.ini gives tests, of the index and of this checkout
DEPENDENCIES = (
    "aiohttp>=3.10",
    "joblib>=1.5",
    "numpy",
    "opentelemetry-sdk>=1.25",
    "prometheus-client>=0.20",
    "pytest-xdist>=3.5",
    "starlette>=0.40",
    "uvicorn>=0.30",
)
CORE = "fiber-core[examples,testing]"
PLUGINS = ("docker", "k8s", "local", "ssh")
TESTS = ("fiber_core/tests", "tests/compat", *(f"plugins/fiber_{name}/tests" for name in PLUGINS))


def main(arguments: Sequence[str]) -> int:
    """Make what is missing and run pytest; its exit code, or 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, help="where the suite is kept")
    parser.add_argument("words", nargs="*", metavar="PYTEST ARGUMENT")
    chosen = parser.parse_args(arguments)
    suite = DebianRoot("forky", PACKAGES, chosen.cache)
    try:
        suite.make()
        install(suite)
    except MissingError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"failed: {shlex.join(map(str, error.cmd))}", file=sys.stderr)
        return 2
    words = ["-n", "4", "--dist", "loadfile", *chosen.words]
    if not any((ROOT / word.partition("::")[0]).exists() for word in chosen.words):
        words += TESTS
    python = ("/venv/bin/python", "-m", "pytest")
    # into which stages have reports written
    logs = ROOT / ".ci" / "logs"
    return suite.call(*python, *words, folder="/checkout", shows=[logs])


def install(suite: DebianRoot) -> None:
    """Put this checkout in, and its distributions as wheels into the environment ``/venv``."""

    def run(*words: str) -> None:
        code = suite.call(*words, folder="/checkout")
        if code:
            raise subprocess.CalledProcessError(code, words)

    def pip(*words: str) -> None:
        # it warns of each index of this machine that lacks a distribution
        run("/venv/bin/python", "-m", "pip", "-qq", *words)

    checkout = suite.path / "checkout"
    if checkout.exists():
        shutil.rmtree(checkout)
    for file in files_of_checkout():
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, checkout / file, follow_symlinks=False)
    print("installing the distributions from wheels", flush=True)
    if not (suite.path / "venv").exists():
        run(PYTHON, "-m", "venv", "/venv")
    folders = ["fiber_core", *(f"plugins/fiber_{name}" for name in PLUGINS)]
    shutil.rmtree(suite.path / "wheels", ignore_errors=True)
    pip("wheel", "--no-deps", "--wheel-dir", "/wheels", *(f"./{one}" for one in folders))
    names = (CORE, *(f"fiber-{name}" for name in PLUGINS))
    pip("install", "--find-links", "/wheels", *names, *DEPENDENCIES)
    # the versions are those of the last time, their content is not
    wheels = sorted(f"/wheels/{path.name}" for path in (suite.path / "wheels").iterdir())
    pip("install", "--no-deps", "--force-reinstall", *wheels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
