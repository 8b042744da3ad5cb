"""Zip archive of the agent's code, sent to hosts and named there by its digest."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import zipfile
from importlib import resources

#: what is run there; the last three are imported where they are needed, and by another name
_ROOTS = (
    "fiber_ssh.remote.__main__",
    "fiber_ssh.remote.agent",
    "fiber_ssh.remote.files",
    "fiber._base.light_values",
)
#: their own modules import far more than the agent needs
_EMPTY = ("fiber", "fiber_ssh", "fiber_ssh.remote")
_IMPORT = re.compile(r"^from (fiber[\w.]*) import ([^(\n]+|\([^)]*\))", re.MULTILINE)
# a fixed time stamp: the same modules give the same bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def agent_archive() -> tuple[str, bytes]:
    """SHA-256 of the archive (16 hex digits), and its bytes; the same code gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in sorted(_modules().items()):
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest()[:16], data


def _modules() -> dict[str, str]:
    """Sources, by their paths in the archive, of the agent and of all of Fiber that it imports."""
    found = {"__main__.py": _source(_ROOTS[0])[1]}
    known: set[str] = set()
    wanted = [*_ROOTS]
    while wanted:
        name = wanted.pop()
        path, text = _source(name)
        if name in known or not path:
            continue
        known.add(name)
        found[path] = text
        wanted.append(name.rpartition(".")[0])
        for module, names in _IMPORT.findall(text):
            wanted += [module, *(f"{module}.{one}" for one in re.findall(r"\w+", names))]
    return found


def _source(name: str) -> tuple[str, str]:
    """Path and text of a module; empty where there is none of that name."""
    package, *rest = name.split(".")
    if not package:
        return "", ""
    folder = resources.files(package)
    for path in ("/".join([*rest, "__init__.py"]), "/".join(rest) + ".py"):
        file = folder.joinpath(path)
        if file.is_file():
            text = "" if name in _EMPTY else file.read_text(encoding="utf-8")
            return f"{package}/{path}", text
    return "", ""


@functools.cache
def loader_source() -> str:
    """Source of the program that receives and runs the archive on a host."""
    return resources.files("fiber_ssh.remote").joinpath("loader.py").read_text(encoding="utf-8")
