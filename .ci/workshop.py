"""What stages work with: this machine's Pythons, programs that tests start, environments of tox."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from stages import Running

__all__ = ["PUBLIC_PATH", "ROOT", "UV_PATH", "VERSIONS", "Workshop"]

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: the Python that runs all tests, and those that do where it is missing
_MAIN = ("3.11", "3.12", "3.13", "3.10")
_TOOLS = ROOT / ".ci" / ".venv"
#: a folder for PATH that has uv and no other tool
UV_PATH = _TOOLS / "uv"
#: the user that owns nothing, and where programs are that it may run
_NOBODY = 65534
PUBLIC_PATH = "/usr/local/bin:/usr/bin:/bin"
#: programs that tests start, and Debian's packages of them
_PROGRAMS = {
    "chromium": "chromium",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "gcc": "gcc",
    "ip": "iproute2",
    "iptables": "iptables",
    "mpicc": "libopenmpi-dev",
    "mpirun": "openmpi-bin",
    "ssh-keygen": "openssh-client",
    "munged": "munge",
    "sbatch": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sshd": "openssh-server",
}


@dataclasses.dataclass(frozen=True)
class User:
    """Somebody who is not root, with a clone.

    Args:
        python: runs Python as that user.
        home: a folder of the user's.
    """

    python: tuple[str | Path, ...]
    home: Path

    @property
    def clone(self) -> Path:
        """The user's checkout."""
        return self.home / "clone"

    @property
    def programs(self) -> Path:
        """A folder for PATH, with uv: ours may be where the user may not look."""
        return self.home / "bin"


class Workshop:
    """The tools of a run, made where they are missing."""

    def __init__(self) -> None:
        #: interpreters by version
        self.pythons = {version: path for version in VERSIONS if (path := _interpreter(version))}
        #: the version that runs all tests
        self.main = next((version for version in _MAIN if version in self.pythons), "")
        self._making = threading.Lock()
        self._made: set[str] = set()
        self._homes: list[Path] = []
        self._engine: subprocess.Popen[str] | None = None
        self._engine_variables: dict[str, str] | None = None
        folders = [str(path.parent) for path in self.pythons.values()]
        # so that tox finds them
        self._path = os.pathsep.join([*folders, os.environ["PATH"]])

    def programs(self, it: Running) -> None:
        """Have the programs that tests start."""
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        missing = {_PROGRAMS[name] for name in _PROGRAMS if not shutil.which(name, path=path)}
        if missing:
            _apt(it, *sorted(missing))

    def tools(self, it: Running) -> None:
        """Have tox, and uv, which makes its environments in a tenth of pip's time."""
        python = self.pythons[self.main]
        if not (_TOOLS / "bin" / "tox").exists():
            if not it.can(python, "-m", "venv", "--clear", _TOOLS):
                # Debian ships Python without what makes environments
                _apt(it, f"python{self.main}-venv")
                it.run(python, "-m", "venv", "--clear", _TOOLS)
            it.run(_TOOLS / "bin" / "pip", "install", "--quiet", "tox>=4.20", "tox-uv>=1.13")
        if not UV_PATH.exists():
            UV_PATH.mkdir()
            (UV_PATH / "uv").symlink_to(_TOOLS / "bin" / "uv")
        # uv reads nothing of what pip was told
        os.environ.setdefault("UV_FIND_LINKS", ",".join(_links()))
        os.environ.setdefault("UV_SYSTEM_CERTS", "true")

    def user(self, it: Running) -> User | None:
        """Somebody who is not root; None where there is nobody to be, or no Python to run."""
        become = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
        # root's own are in its home
        found = [shutil.which(f"python{version}", path=PUBLIC_PATH) for version in VERSIONS]
        pythons = [path for path in found if path and it.can(*become, path, "-c", "import venv")]
        if os.geteuid() != 0 or not pythons:
            return None
        user = User((*become, pythons[-1]), Path(tempfile.mkdtemp(prefix="fiber-user-")))
        self._homes.append(user.home)
        it.run("git", "clone", "--quiet", ROOT, user.clone)
        user.programs.mkdir()
        shutil.copy(UV_PATH / "uv", user.programs)
        it.run("chown", "--recursive", f"{_NOBODY}:{_NOBODY}", user.home)
        return user

    def engine(self, python: Path) -> dict[str, str]:
        """Variables of the Docker engine for all stages, which the first who asks starts.

        Args:
            python: one of an environment; the engine's image has what is installed there.
        """
        with self._making:
            if self._engine_variables is None:
                # it ends with its standard input, so at the latest with us
                self._engine = subprocess.Popen(
                    [python, "tests/support/run_engine.py"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert self._engine.stdout is not None
                # nothing comes where none can be started: what needs one says why
                self._engine_variables = json.loads(self._engine.stdout.readline() or "{}")
            return self._engine_variables

    def close(self) -> None:
        """Remove what is not the checkout's, and end the engine."""
        if self._engine is not None:
            self._engine.communicate()
        for home in self._homes:
            shutil.rmtree(home)

    def tox(self, it: Running, name: str, *words: str) -> None:
        """Run an environment's commands."""
        self.environment(it, name)
        it.run(_TOOLS / "bin" / "tox", "run", "-q", "-e", name, *words, PATH=self._path)

    def tox_tests(self, it: Running, name: str, *words: str, **environ: str) -> None:
        """Run an environment's command, which are tests, with more arguments for pytest."""
        self.environment(it, name)
        tox = (_TOOLS / "bin" / "tox", "run", "-q", "-e", name, "--", "-q")
        it.tests(*tox, *words, PATH=self._path, **environ)

    def environment(self, it: Running, name: str) -> Path:
        """Have an environment of tox's; its Python."""
        # stages that run side by side may ask for the same
        with self._making:
            if name not in self._made:
                tox = (_TOOLS / "bin" / "tox", "run", "-q", "--notest", "-e", name)
                # images are made of it, in which nothing that is compiled later is kept
                compiled = "true" if name.endswith("-docker") else "false"
                it.run(*tox, PATH=self._path, UV_COMPILE_BYTECODE=compiled)
                self._made.add(name)
        return ROOT / ".tox" / name / "bin" / "python"

    def add(self, it: Running, python: Path, *words: str) -> bool:
        """Whether an environment could be given what is not in tox.ini."""
        uv = (_TOOLS / "bin" / "uv", "pip", "install", "--quiet", "--python", python)
        return it.can(*uv, *words)

    def add_torch(self, it: Running, python: Path, *more: str) -> bool:
        """Whether there is a wheel of torch for an environment, and for what needs it.

        It is one that the machine holds: those of PyPI bring gigabytes of CUDA.
        """
        here = self.add(it, python, "--no-index", "--no-deps", "torch")
        if not (here and self.add(it, python, "torch", *more)):
            it.say("no wheel of torch is on this machine: what uses it is untested")
            return False
        return True


def _interpreter(version: str) -> Path | None:
    check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in (*pyenv, shutil.which(f"python{version}")):
        if path and subprocess.run([path, "-c", check], check=False).returncode == 0:
            return Path(path)
    return None


def _apt(it: Running, *packages: str) -> None:
    it.run("apt-get", "update", "-qq")
    words = ("install", "-qq", "-y", "--no-install-recommends")
    it.run("apt-get", *words, *packages, DEBIAN_FRONTEND="noninteractive")


def _links() -> list[str]:
    """Folders of wheels that pip was told of."""
    pip = [str(_TOOLS / "bin" / "pip"), "config", "get", "global.find-links"]
    told = subprocess.run(pip, capture_output=True, text=True, check=False).stdout.split()
    return [*told, *os.environ.get("PIP_FIND_LINKS", "").split()]
