"""The agent's code as it is sent to hosts: one archive, named by what is in it."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from importlib import resources

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
# an archive of the same modules has the same bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def agent_archive() -> tuple[str, bytes]:
    """Digest and bytes of the archive."""
    package = resources.files("fiber_ssh.remote")
    texts = {f"fiber_ssh/remote/{name}.py": package.joinpath(f"{name}.py") for name in _MODULES}
    # needs no more than Python's own library
    texts["fiber/backend_parts/liveness.py"] = resources.files("fiber.backend_parts").joinpath(
        "liveness.py"
    )
    contents = {name: file.read_bytes() for name, file in texts.items()}
    contents["__main__.py"] = contents.pop("fiber_ssh/remote/__main__.py")
    for folder in ("fiber_ssh", "fiber_ssh/remote", "fiber", "fiber/backend_parts"):
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
    """The program that takes the archive on a host."""
    return resources.files("fiber_ssh.remote").joinpath("loader.py").read_text(encoding="utf-8")
