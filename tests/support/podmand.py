"""A Podman service of the tests' own, which speaks Docker's API; all gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockerd import DISTRIBUTIONS, Engine, archive, unmount
from require import need

__all__ = ["podman", "started"]

_IMAGE = "localhost/fiber-test:latest"
_PATIENCE = 60.0
_PROGRAMS = ("podman", "conmon", "runc")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
#: what a container gets unless said otherwise is more than root may have in some machines
_CONF = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""
_IMAGE_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: networks of the tests' own are 10.234.NUMBER
_NUMBER = os.getpid() % 250


@pytest.fixture(scope="session")
def podman() -> Iterator[Engine]:
    """Podman, with the image; skipped where it is not installed, unless FIBER_REQUIRE names it."""
    need("podman", missing())
    with started() as running:
        yield running


def missing() -> str | None:
    """What Podman lacks here; None where its service can be started."""
    if os.getuid() != 0:
        return "a service of our own can be started by root only"
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    return f"{', '.join(absent)} not found; run apt-get install podman runc" if absent else None


@contextlib.contextmanager
def started() -> Iterator[Engine]:
    """Start a service in a folder of its own, and end it with all that it made."""
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    command = [
        "podman",
        f"--root={folder}/root",
        f"--runroot={folder}/run",
        f"--tmpdir={folder}/tmp",
        f"--network-config-dir={_network(folder)}",
        "--cgroup-manager=cgroupfs",
        "--events-backend=file",
        "--runtime=runc",
    ]
    url = f"unix://{folder}/podman.sock"
    (folder / "containers.conf").write_text(_CONF)
    environ = {**os.environ, "PATH": _PATH, "CONTAINERS_CONF": f"{folder}/containers.conf"}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(unmount, folder)
        image = stack.enter_context(archive(folder, DISTRIBUTIONS))
        log = stack.enter_context((folder / "log").open("wb"))
        service = subprocess.Popen(
            [*command, "system", "service", "--time=0", url],
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
        stack.callback(_end, service)

        def ask(*words: str) -> None:
            subprocess.run([*command, *words], check=True, capture_output=True, env=environ)

        ask("import", "--change", _IMAGE_PATH, str(image()), _IMAGE)
        _await_socket(folder / "podman.sock", service)
        stack.callback(ask, "rm", "--all", "--force", "--time=0")
        gateway = f"10.234.{_NUMBER}.1"
        yield Engine(url=url, gateway=gateway, image=_IMAGE)


def _network(folder: Path) -> Path:
    """A folder with the default network, whose bridge and addresses nobody else has."""
    networks = folder / "networks"
    networks.mkdir()
    subnet = {"subnet": f"10.234.{_NUMBER}.0/24", "gateway": f"10.234.{_NUMBER}.1"}
    network = {
        "name": "podman",
        "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "driver": "bridge",
        "network_interface": f"fiberp{_NUMBER}",
        "created": "2024-01-01T00:00:00Z",
        "subnets": [subnet],
        "ipv6_enabled": False,
        "internal": False,
        "dns_enabled": False,
        "ipam_options": {"driver": "host-local"},
    }
    (networks / "podman.json").write_text(json.dumps(network))
    return networks


def _await_socket(path: Path, service: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not path.exists():
        if service.poll() is not None or time.monotonic() > deadline:
            words = path.with_name("log").read_text()[-2000:]
            msg = f"podman's service did not come up: {words}"
            raise RuntimeError(msg)
        # it tells nobody that it listens
        time.sleep(0.05)


def _end(service: subprocess.Popen[bytes]) -> None:
    service.terminate()
    try:
        service.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        service.kill()
        service.wait()
