#!/usr/bin/env python3
"""Sets up a checkout and runs it: ``python3 bootstrap.py train`` or ``python3 bootstrap.py test``.

Needs Python 3.10 or later and pip, nothing else; where uv is on PATH too, it installs in a tenth of
pip's time. The script makes the virtual environment ``.venv`` beside this file, installs both
packages into it in place, and passes further arguments on. ``test`` runs what tells whether Fiber
works on this machine; ``test --all`` runs all tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "fiber-bootstrap"
PACKAGES = ("fiber_core", "plugins/fiber_local")
# what the tests have besides; each backend's own tests have an environment of tox with its engine
BACKENDS = (
    "plugins/fiber_docker",
    "plugins/fiber_k8s",
    "plugins/fiber_slurm",
    "plugins/fiber_ssh",
)
# the tests send arrays, draw plots and look at the examples
EXTRAS = {"train": "examples", "test": "dashboard,examples,joblib,otel,prometheus,testing"}
# how this repository runs its own tests, which is no matter of those who install the extra
RUNNERS = ("pytest-xdist>=3.5",)
OLDEST_PYTHON = (3, 10)
# the first pip that installs these packages in place
OLDEST_PIP = (21, 3)


def main(arguments: list[str]) -> int:
    """Set up what a subcommand needs and run it; return its exit code."""
    if not arguments or arguments[0] not in EXTRAS:
        print(
            "usage: python3 bootstrap.py train [ARGUMENT ...]   evolution strategies on CartPole\n"
            "       python3 bootstrap.py test  [ARGUMENT ...]   whether Fiber works here, in minutes\n"
            "       python3 bootstrap.py test --all [ARGUMENT ...]   all tests; --part rest: the others\n"
            "arguments of test are pytest's; where they name tests, these run whole",
            file=sys.stderr,
        )
        return 2
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        found = sys.version.split()[0]
        print(f"Python {wanted} or later is needed, this is {found}", file=sys.stderr)
        return 2
    command, *rest = arguments
    python = VENV / "bin" / "python"
    try:
        install(python, EXTRAS[command])
    except subprocess.CalledProcessError as error:
        print(f"setting up failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    if command == "train":
        program = [str(python), str(ROOT / "examples" / "es_cartpole.py"), *rest]
    else:
        chosen = [word for word in rest if word != "--all"]
        part = [] if {"--all", "--part"} & set(rest) else ["--part", "quick"]
        # most tests wait for processes to start and end, so several at once cost no more CPU
        several = ["-n", "4", "--dist", "loadfile"]
        # its own letters and percents would stand between the lines
        told = ["--progress", "-o", "console_output_style=classic"]
        program = [str(python), "-m", "pytest", *several, *told, *part, *chosen]
        os.chdir(ROOT)
    become(program)


def become(program: list[str]) -> NoReturn:
    """Go on as another program, so that Ctrl-C and exit codes are its own."""
    sys.stdout.flush()
    os.execv(program[0], program)  # noqa: S606 - an argv without a shell is the safe form


def install(python: Path, extra: str) -> None:
    """Make the virtual environment where it is missing and install what is not in it yet."""
    wanted = fingerprint()
    done = read_stamp()
    if wanted not in done or not python.exists():
        done = [wanted]
        make_venv(python)
    if extra in done:
        return
    print(f"installing fiber-core[{extra}] and fiber-local into {VENV}", flush=True)
    core, local = (str(ROOT / package) for package in PACKAGES)
    more: list[str] = []
    if extra == EXTRAS["test"]:
        more += RUNNERS
        for package in BACKENDS:
            more += "-e", str(ROOT / package)
    words = ("install", "-e", f"{core}[{extra}]", "-e", local, *more)
    if not uv(python, *words):
        pip(python, *words)
    STAMP.write_text("\n".join([*done, extra]), encoding="utf-8")


class Installation:
    """How far pip is, by what it says and by what it has installed."""

    #: the part of the time in which it finds out what is needed, of about so many distributions
    SEARCH, DISTRIBUTIONS = 0.4, 80
    #: how much longer than to look at another one it takes to look at one of this checkout
    OWN = 12

    def __init__(self) -> None:
        self.said: list[str] = []
        self.has_ended = False
        self._doing = "starting pip"
        self._found = 0
        self._wanted = 0
        self._before = self._installed()

    def hear(self, line: str) -> None:
        """Take note of a line of pip's."""
        self.said.append(line)
        if line.startswith(("Collecting ", "Obtaining ", "Requirement already ")):
            self._found += self.OWN if line.startswith("Obtaining ") else 1
            self._doing = line.strip()
        if line.startswith("Installing collected packages: "):
            self._wanted = line.count(",") + 1

    def state(self) -> tuple[float, str]:
        """The share that is done, and what is being done."""
        if self.has_ended:
            return 1.0, "installed"
        if self._wanted:
            installed = min(self._installed() - self._before, self._wanted)
            # the last one may be large, and is there before it is compiled
            share = self.SEARCH + (0.95 - self.SEARCH) * installed / self._wanted
            return share, f"{installed} of {self._wanted} distributions installed"
        own = self.OWN * (len(PACKAGES) + len(BACKENDS))
        share = self.SEARCH * min(self._found / (self.DISTRIBUTIONS + own), 1.0)
        return share, self._doing

    @staticmethod
    def _installed() -> int:
        return len(list(VENV.glob("lib/python*/site-packages/*.dist-info")))


def fingerprint() -> str:
    """Changes when the packages' requirements or the Python do."""
    digest = hashlib.sha256(sys.version.encode())
    for package in (*PACKAGES, *BACKENDS):
        digest.update((ROOT / package / "pyproject.toml").read_bytes())
    digest.update(str(ROOT).encode())
    return digest.hexdigest()


def read_stamp() -> list[str]:
    """The fingerprint and the extras of an earlier call; empty where there is no trace of one."""
    try:
        return STAMP.read_text(encoding="utf-8").split()
    except OSError:
        return []


def make_venv(python: Path) -> None:
    """Make ``.venv``, with a pip of its own where this Python can give it one."""
    print(f"making {VENV} with {sys.executable}", flush=True)
    STAMP.unlink(missing_ok=True)
    try:
        import ensurepip  # noqa: F401 - Debian ships Python without it
    except ImportError:
        venv.create(VENV, clear=True, with_pip=False, symlinks=True)
        return
    venv.create(VENV, clear=True, with_pip=True, symlinks=True)
    version = subprocess.check_output(
        [python, "-c", "import pip; print(pip.__version__)"], text=True
    )
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PIP:
        pip(python, "install", "--upgrade", "pip")


def uv(python: Path, *arguments: str) -> bool:
    """Whether uv is here and did what pip would; it may not be told of the index that pip is."""
    if not (program := shutil.which("uv")):
        return False
    return subprocess.call([program, "pip", *arguments, "--python", str(python)]) == 0


def pip(python: Path, *arguments: str) -> None:
    """Call pip for the virtual environment: its own, else this Python's."""
    # it needs a newer Python than the one that says so
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from progress import Progress

    has_own = subprocess.call([python, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0
    if has_own:
        command = [str(python), "-m", "pip"]
    else:
        command = [sys.executable, "-m", "pip", "--python", str(python)]
    words = [*command, *arguments]
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    installation = Installation()
    progress = Progress(sys.stdout, installation.state)
    try:
        # its warnings too, which are told where it fails
        output, errors = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(
            words, stdout=output, stderr=errors, text=True, env=environ
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                installation.hear(line)
        installation.has_ended = not process.returncode
    finally:
        progress.end()
    if process.returncode:
        sys.stderr.writelines(installation.said)
        raise subprocess.CalledProcessError(process.returncode, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
