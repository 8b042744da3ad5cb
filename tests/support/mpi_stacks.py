"""MPI implementations for tests: Debian's Open MPI, and those of PyPI in environments of their own.

``python tests/support/mpi_stacks.py`` makes the environments, in ``.tox/mpi`` or in MPI_STACKS.
"""

import functools
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import attrs

from require import need

#: distributions by name; Debian's has none of its own
STACKS = {"debian": (), "openmpi": ("openmpi",), "mpich": ("mpich",), "intel": ("impi-rt",)}


@attrs.frozen
class Stack:
    """One that is here."""

    #: its name in :data:`STACKS`
    name: str
    #: its mpirun
    mpirun: str
    #: a Python that has mpi4py
    python: str

    @property
    def folder(self) -> Path:
        """The environment it is in, for those of PyPI."""
        return Path(self.python).parents[1].resolve()

    def ways(self, folder: Path) -> list[str]:
        """Options by which ranks find it, and mpi4py, where its environment lies in a folder."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found = {
            "PYTHONPATH": folder / "lib" / version / "site-packages",
            "LD_LIBRARY_PATH": folder / "lib",
        }
        if self.name in {"debian", "openmpi"}:
            return [word for key, path in found.items() for word in ("-x", f"{key}={path}")]
        return [word for key, path in found.items() for word in ("-genv", key, str(path))]


def _root() -> Path:
    made = os.environ.get("MPI_STACKS")
    return Path(made) if made else Path(__file__).parents[2] / ".tox" / "mpi"


@functools.cache
def stack(name: str) -> Stack:
    """One of the implementations; absent, it skips or fails as :func:`require.need` says."""
    folder = _root() / name / "bin"
    mpirun = shutil.which("mpirun") if name == "debian" else str(folder / "mpirun")
    missing = [str(path) for path in (mpirun or "mpirun", folder / "python") if not _is_there(path)]
    hint = "run python tests/support/mpi_stacks.py, and apt-get install openmpi-bin"
    need("mpi", f"{', '.join(missing)} is not there; {hint}" if missing else None)
    return Stack(name, str(mpirun), str(folder / "python"))


def make() -> None:
    """Make the environments that are missing."""
    for name, distributions in STACKS.items():
        folder = _root() / name
        if not (folder / "made").exists():
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, "mpi4py>=4", *distributions], check=True)
            (folder / "made").touch()


def _is_there(path: str | Path) -> bool:
    return bool(path) and Path(path).is_absolute() and Path(path).exists()


if __name__ == "__main__":
    sys.exit(make())
