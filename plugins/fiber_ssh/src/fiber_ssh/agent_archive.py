"""Zip archive of the agent's code, sent to hosts and named there by its digest."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from importlib import resources
from pathlib import PurePosixPath

__all__ = ["agent_archive", "loader_source"]

_MODULES = (
    "__main__",
    "agent",
    "connection",
    "files",
    "job",
    "kernel",
    "logfile",
    "main",
    "runs",
    "wire",
)
# need no more than Python's own library
_OF_THE_CORE = ("_agent/supervisor/kernel.py", "_base/loop.py", "backend_parts/liveness.py")
# a fixed time stamp: the same modules give the same bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def agent_archive() -> tuple[str, bytes]:
    """SHA-256 of the archive (16 hex digits), and its bytes; the same code gives the same bytes."""
    package = resources.files("fiber_ssh.remote")
    texts = {f"fiber_ssh/remote/{name}.py": package.joinpath(f"{name}.py") for name in _MODULES}
    core = resources.files("fiber")
    texts |= {f"fiber/{path}": core.joinpath(path) for path in _OF_THE_CORE}
    contents = {name: file.read_bytes() for name, file in texts.items()}
    contents["__main__.py"] = contents.pop("fiber_ssh/remote/__main__.py")
    for folder in {str(one) for name in texts for one in PurePosixPath(name).parents} - {"."}:
        contents[f"{folder}/__init__.py"] = b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(contents.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest()[:16], data


@functools.cache
def loader_source() -> str:
    """Source of the program that receives and runs the archive on a host."""
    return resources.files("fiber_ssh.remote").joinpath("loader.py").read_text(encoding="utf-8")
