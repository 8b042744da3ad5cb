"""A registry of images with a password, on a loopback port; removed at the end."""

import base64
import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

USER, PASSWORD = "fiber", "open-sesame"  # of nobody but this registry
#: bcrypt hash of the password
_HASH = "$2y$05$.W.D3EUZRlYY3xcnJbyoC.3Ilwcty2.LvTBvGkqBvkyXCBV8MvG1y"
_CONFIG = """\
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/images
http:
  addr: 127.0.0.1:0
auth:
  htpasswd:
    realm: tests
    path: {folder}/users
"""


@attrs.frozen
class Registry:
    """A running registry."""

    #: ``HOST:PORT``, the first part of its images' names
    address: str

    def auth(self) -> str:
        """User and password in base64, as in the docker command's config.json."""
        return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def missing() -> str | None:
    """The requirement of a registry that this machine lacks; None where it has all."""
    if shutil.which("docker-registry") is None:
        return "docker-registry not found; run apt-get install docker-registry"
    return None


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Registry]:
    """Start a registry that keeps its images in a folder."""
    (folder / "users").write_text(f"{USER}:{_HASH}\n")
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder))
    # it ends with the tests, also if they are killed
    ends = ("setpriv", "--pdeathsig", "KILL")
    words = [*ends, "docker-registry", "serve", str(folder / "config.yml")]
    with (
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        ThreadPoolExecutor(1, "registry") as reader,
    ):
        assert process.stdout is not None
        try:
            log: list[str] = []
            address = _address(process.stdout, log)
            # it logs each request, and would wait for a reader
            reader.submit(log.extend, process.stdout)
            yield Registry(address)
        finally:
            process.kill()


def _address(output: Iterable[str], log: list[str]) -> str:
    for line in output:
        log.append(line)
        found = re.search(r"listening on (127\.0\.0\.1:\d+)", line)
        if found:
            return found[1]
    raise RuntimeError(f"the registry did not come up: {''.join(log)[-2000:]}")
