"""The first words to a host's Python: says what it is, and runs the agent's code that is sent to it.

It is sent as text, runs on any Python 3, and needs nothing but its own library.
"""

import json
import os
import sys
from typing import Any


def _read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(1)
        data += piece
    return data


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _own(root: str) -> str:
    """The folder of this host: hosts of one name may share a home, and must not share jobs."""
    own = _text("/etc/machine-id") or _text("/proc/sys/kernel/random/boot_id")
    for folder in (root, root + "-" + own[:8]):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.stat(folder).st_uid != os.getuid():
            raise OSError(folder + " belongs to another user")
        if not os.access(folder, os.W_OK):
            raise OSError(folder + " cannot be written to")
        path = os.path.join(folder, "machine")
        if not os.path.exists(path):
            new = path + "." + str(os.getpid())
            with open(new, "w", encoding="ascii") as file:
                file.write(own)
            try:
                # whoever is first has it
                os.link(new, path)
            except FileExistsError:
                pass
            finally:
                os.unlink(new)
        if _text(path) == own:
            return folder
    raise OSError(root + " belongs to other hosts of this name")


def _unpack(archive: bytes, path: str) -> None:
    """Make a folder of an archive: what is there is compiled only once."""
    import io
    import shutil
    import zipfile

    new = path + "." + str(os.getpid())
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            file.extractall(new)
        os.rename(new, path)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        # somebody else may have been first
        if not os.path.isdir(path):
            sys.exit(
                "fiber cannot keep its files: " + str(error) + "; name a folder with FIBER_SSH_ROOT"
            )


def _main() -> None:
    order = json.loads(_read(int(_read(8))).decode())
    fiber = None
    try:
        from importlib.metadata import version

        fiber = version("fiber-core")
    except Exception:  # noqa: S110 - none, or not to be used: both are the same here
        pass
    # a relative one is of the home, where sessions begin
    root = os.path.abspath(os.path.expanduser(order["root"] or "~/.cache/fiber/ssh"))
    root = os.path.join(root, os.uname().nodename)
    about: dict[str, Any] = {
        "python": list(sys.version_info[:3]),
        "fiber": fiber,
        "executable": sys.executable,
    }
    about["host"] = os.uname().nodename
    affinity = getattr(os, "sched_getaffinity", None)
    about["cpus"] = len(affinity(0)) if affinity else os.cpu_count() or 1
    about["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    about["seen"] = os.environ.get("SSH_CONNECTION")
    fit = sys.version_info[:2] >= (3, 10)
    path = ""
    if fit:
        try:
            root = _own(root)
            path = os.path.join(root, "agent-" + order["digest"])
        except OSError as error:
            about["problem"] = str(error)
            fit = False
    about["archive"] = path
    about["lacks"] = fit and not os.path.isdir(path)
    about["root"] = root
    os.write(1, ("fiber-ssh:" + json.dumps(about) + "\n").encode())
    if about["lacks"]:
        _unpack(_read(order["size"]), path)
    if fit:
        os.execv(sys.executable, [sys.executable, "-I", "-S", path, "session", root])  # noqa: S606 - no shell is right


_main()
