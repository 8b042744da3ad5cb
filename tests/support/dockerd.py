"""A Docker engine of the tests' own, with socket, folder, bridge and image; all removed at the end.

A ``conftest.py`` imports the fixtures: ``from dockerd import engine, own_engine``. Each pytest process,
and so each worker of xdist, starts an engine, unless ``TEST_DOCKERD`` names one that ``run_engine.py``
has started for all of them. On that one each process has a *session*: an image of its own, whose label
all its containers have, and a user's name of its own. It neither sees nor ends what is of others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

import hygiene
import waiting
from commands import ran
from require import need
from rootfs import write

#: the image that holds this checkout and its Python
IMAGE = "fiber-test"
#: distributions in it, with their dependencies
DISTRIBUTIONS = ("fiber-core", "fiber-local", "fiber-docker", "docker", "pytest")
#: further distributions that tests and examples use, where they are installed
_OPTIONAL = ("fiber-k8s", "gymnasium", "hypothesis", "numpy")
#: names an engine that was started for several processes, see :meth:`Engine.variable`
VARIABLE = "TEST_DOCKERD"
#: key of the label with a session's name
_LABEL = "fiber.tests"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_TIMEOUT = 60.0
_MEMORY = "/dev/shm"
#: bytes to spare for an engine in memory: it takes a sixth of them
_ROOM = 4 << 30
_PROGRAMS = ("dockerd", "containerd", "runc", "ip")
#: PATH with the folders of administrators, which a user's may lack
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@attrs.frozen(kw_only=True)
class Engine:
    """A running engine."""

    #: as in ``DOCKER_HOST``
    url: str
    #: its process; None for an engine that tests must not restart
    daemon: Daemon | None = None
    #: address of this host on the engine's bridge
    gateway: str
    #: the image to run
    image: str = IMAGE
    #: archive of the image's file system
    archive: Path | None = None
    #: name of these tests among those that use the engine; None where there are no others
    session: str | None = None

    def variable(self) -> str:
        """The value of ``TEST_DOCKERD`` by which other processes use it."""
        told = {"url": self.url, "gateway": self.gateway, "image": self.image}
        return json.dumps({**told, "archive": str(self.archive), "python": _PYTHON})

    def environ(self, **more: str) -> dict[str, str]:
        """All variables of a program that runs its jobs here, as a user of its own."""
        own = {"FIBER_BACKEND": "docker", "FIBER_IMAGE": self.image, "DOCKER_HOST": self.url}
        if self.session is not None:
            own["LOGNAME"] = self.session
        return {**os.environ, **own, **more}

    def docker(self, **options: Any) -> Any:
        """A client of the SDK; the caller closes it."""
        import docker

        return docker.DockerClient(base_url=self.url, version="auto", **options)

    def answers(self, seconds: float = _TIMEOUT) -> bool:
        """Whether it tells about its containers and networks in time.

        dockerd 20.10 can lock up in its networks: it still answers a ping, and nothing else any more.
        """
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            with contextlib.closing(self.docker(timeout=seconds)) as client:
                client.api.info()
                client.api.networks()
        except (DockerException, RequestException):
            return False
        return True

    def named(self, word: str) -> str:
        """A name for something of these tests, made of a word."""
        return word if self.session is None else f"{word}-{self.session}"

    def labels(self, *more: str) -> list[str]:
        """Labels by which the engine finds containers and images of these tests."""
        return [*([] if self.session is None else [f"{_LABEL}={self.session}"]), *more]

    def listed(self, *labels: str, **filters: str) -> list[Any]:
        """Containers of these tests as the engine lists them: all, or those with labels and states."""
        with contextlib.closing(self.docker()) as client:
            return list(
                client.api.containers(all=True, filters={**filters, "label": self.labels(*labels)})
            )

    def containers(self, run_id: str | None = None) -> list[str]:
        """Names and states of existing containers, of one run or of all."""
        found = self.listed(*([] if run_id is None else [f"fiber.run={run_id}"]))
        # one that is being removed has no name any more
        return [f"{(item['Names'] or [item['Id']])[0]}: {item['Status']}" for item in found]

    def left(self, seconds: float) -> list[str]:
        """Containers left: waits until there is none, for so many seconds at most."""
        # the engine removes some by itself, after the event of their end
        return waiting.left(self.containers, seconds, pause=0.2)

    def pause(self, container: str) -> None:
        """Freeze a container, also one that was started a moment ago and cannot be paused yet."""
        from docker.errors import APIError

        deadline = time.monotonic() + _TIMEOUT
        with contextlib.closing(self.docker()) as client:
            while True:
                try:
                    client.api.pause(container)
                except APIError:
                    assert time.monotonic() < deadline
                    # there is no event for that
                    time.sleep(0.05)
                else:
                    return

    def clear(self) -> None:
        """Remove all containers of these tests."""
        from docker.errors import APIError

        with contextlib.closing(self.docker()) as client:
            for item in self.listed():
                # some remove themselves meanwhile
                with contextlib.suppress(APIError):
                    client.api.remove_container(item["Id"], force=True, v=True)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A running engine with the image; without one, tests skip or fail by FIBER_REQUIRE."""
    need("docker", missing())
    with obtained() as running:
        yield running


@pytest.fixture(scope="session")
def own_engine(engine: Engine) -> Iterator[Engine]:
    """An engine that no other tests use at the same time, to stop and start."""
    if engine.daemon is not None:
        yield engine
        return
    with started() as running:
        yield running


@contextlib.contextmanager
def obtained() -> Iterator[Engine]:
    """A session on the engine that TEST_DOCKERD names, if it answers; else one that is started now."""
    shared = _shared()
    with session(shared) if shared is not None and shared.answers() else started() as running:
        yield running


def _shared() -> Engine | None:
    """The engine that TEST_DOCKERD names; None without one whose image has this Python."""
    told = json.loads(os.environ.get(VARIABLE) or "{}")
    if told.pop("python", None) != _PYTHON:
        return None
    return Engine(**{**told, "archive": Path(told["archive"])})


@contextlib.contextmanager
def session(engine: Engine) -> Iterator[Engine]:
    """An engine as one of several users at the same time has it, until all of theirs is removed.

    Containers have the labels of their images, and images those of the one that they are made from.
    """
    from docker.errors import APIError

    name = f"tests-{secrets.token_hex(4)}"
    text = f"FROM {engine.image}\nLABEL {_LABEL}={name}\n"
    image = f"{IMAGE}:{name}"
    with contextlib.closing(engine.docker(timeout=_TIMEOUT * 5)) as client:
        client.images.build(fileobj=io.BytesIO(text.encode()), tag=image, rm=True)
        own = attrs.evolve(engine, session=name, image=image, daemon=None)
        try:
            yield own
        finally:
            own.clear()
            images = client.api.images(filters={"label": own.labels()})
            # an image goes after those made from it, and images of one second have no order
            for _ in range(len(images)):
                for found in images:
                    with contextlib.suppress(APIError):
                        client.api.remove_image(found["Id"], force=True)


def missing(
    programs: Sequence[str] = _PROGRAMS, packages: str = "docker.io iproute2"
) -> str | None:
    """The requirement of an engine that this machine lacks; None where it has all."""
    if os.getuid() != 0:
        return "an engine of our own can be started by root only"
    absent = [name for name in programs if shutil.which(name, path=PATH) is None]
    return f"{', '.join(absent)} not found; run apt-get install {packages}" if absent else None


@contextlib.contextmanager
def started(
    distributions: Sequence[str] = DISTRIBUTIONS,
    config: Mapping[str, Any] | None = None,
    ready: Path | None = None,
) -> Iterator[Engine]:
    """Start an engine, and remove it with all that it made.

    Args:
        distributions: distributions in the image.
        config: dockerd's, as in ``daemon.json``.
        ready: an archive of the image's file system, if there is one.
    """
    _sweep()
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"fd-{os.getpid():x}-", dir=_root()))
        stack.callback(shutil.rmtree, folder)
        stack.callback(unmount, folder)
        name, number = stack.enter_context(_bridge())
        image = stack.enter_context(archive(folder, distributions, ready))
        daemon = Daemon(folder, name, number, config or {})
        stack.callback(daemon.stop)
        daemon.start()
        url, gateway = f"unix://{folder}/docker.sock", f"10.231.{number}.1"
        engine = Engine(url=url, daemon=daemon, gateway=gateway, archive=image())
        stack.callback(lambda: daemon.is_running and engine.clear())
        _load(engine)
        yield engine


def _root() -> str:
    """The folder for that of an engine: one in memory, if there is room, else that for temporary files.

    On a busy disk it takes a minute to remove the thousands of files of an image.
    """
    with contextlib.suppress(OSError):
        if min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available) > _ROOM:
            return _MEMORY
    return tempfile.gettempdir()


@contextlib.contextmanager
def _bridge() -> Iterator[tuple[str, int]]:
    """A bridge with a name and a network of its own."""
    for number in range(1, 250):
        name = f"fiber{number}"
        # an address of its own: a bridge without one takes that of some port, so another one with each
        # container that comes or goes, and what the others send to the old one is lost
        own = ("address", f"02:fb:0a:e7:00:{number:02x}")
        if _ip("link", "add", name, *own, "type", "bridge").returncode == 0:
            break
    else:
        msg = f"no bridge can be made: {_ip('link', 'add', 'fiber1', 'type', 'bridge').stderr}"
        raise RuntimeError(msg)
    try:
        _ip("addr", "add", f"10.231.{number}.1/24", "dev", name).check_returncode()
        # the owner's pid, for a sweep after the tests were killed
        _ip("link", "set", name, "alias", f"{os.getpid():x}").check_returncode()
        _ip("link", "set", name, "up").check_returncode()
        yield name, number
    finally:
        _ip("link", "del", name).check_returncode()


@contextlib.contextmanager
def archive(
    folder: Path, distributions: Sequence[str], ready: Path | None = None
) -> Iterator[Callable[[], Path]]:
    """Archive of the image's file system, made meanwhile; call the value to wait for it.

    Args:
        folder: where it is put, unless there is one already.
        distributions: distributions in it.
        ready: that one.
    """
    shared = _shared()
    if ready is None and shared is not None and distributions == DISTRIBUTIONS:
        ready = shared.archive
    if ready is not None:
        yield lambda: ready
        return
    more = [name for name in _OPTIONAL if importlib.util.find_spec(name.replace("-", "_"))]
    path = folder / "root.tar"

    def make() -> Path:
        with path.open("wb") as stream:
            write(stream, [*distributions, *more])
        return path

    with ThreadPoolExecutor(1, "rootfs") as thread:
        made = thread.submit(make)
        # ends with that: the engine may be started amidst a test, which then must leave no thread
        thread.shutdown(wait=False)
        yield made.result


class Daemon:
    """dockerd with a folder of its own, which can be stopped and started again.

    Args:
        folder: its data, its socket and its log.
        bridge: where its containers are.
        number: of its network.
        config: as in ``daemon.json``, unless it is started with another one.
    """

    def __init__(self, folder: Path, bridge: str, number: int, config: Mapping[str, Any]) -> None:
        # where it can be had, dockerd ends with the tests, even if they are killed
        bond = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv", path=PATH) else []
        self._argv = [
            *bond,
            "dockerd",
            f"--host=unix://{folder}/docker.sock",
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/docker.pid",
            f"--bridge={bridge}",
            f"--default-address-pool=base=10.232.{number}.0/24,size=28",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            f"--config-file={folder}/daemon.json",
        ]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._config = config

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "dockerd is stopped"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """False where it was stopped, or has ended."""
        return self._process is not None and Path(f"/proc/{self._process.pid}").exists()

    def start(self, config: Mapping[str, Any] | None = None) -> None:
        """Start it, and wait until it answers."""
        config = self._config if config is None else config
        (self._folder / "daemon.json").write_text(json.dumps(config))
        ready, log = self._folder / "ready", self._folder / "log"
        environ = {**os.environ, "PATH": PATH, "NOTIFY_SOCKET": str(ready)}
        for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
            environ.pop(name, None)
        with log.open("ab") as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            ready.unlink(missing_ok=True)
            notify.bind(str(ready))
            notify.settimeout(_TIMEOUT)
            # a session of its own, so that Ctrl-C reaches the tests alone
            self._process = subprocess.Popen(
                self._argv, stdout=stream, stderr=stream, env=environ, start_new_session=True
            )
            # a fixture of wider scope ends it, though a test asks for it first, or restarts it
            hygiene.restarted.add(self._process.pid)
            _await_ready(notify, log)

    def stop(self) -> None:
        """End it and wait; nothing where it is stopped."""
        process, self._process = self._process, None
        if process is not None:
            end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Have a process end by SIGTERM, or kill it, and wait."""
    process.terminate()
    try:
        process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_ready(notify: socket.socket, log: Path) -> None:
    """Wait for dockerd's notification that it is ready, as in sd_notify(3)."""
    try:
        while b"READY=1" not in notify.recv(4096):
            pass
    except TimeoutError as error:
        raise RuntimeError(f"dockerd did not come up: {log.read_text()[-2000:]}") from error


def _load(engine: Engine) -> None:
    with contextlib.closing(engine.docker(timeout=_TIMEOUT * 5)) as client:
        path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        answer = client.api.import_image_from_file(str(engine.archive), IMAGE, "latest", [path])
        assert "sha256:" in answer, answer


def _sweep() -> None:
    """Remove the folders and bridges of tests that were killed; their engines ended with them."""
    for root in (tempfile.gettempdir(), _MEMORY):
        for folder in Path(root).glob("fd-*-*"):
            if _is_gone(folder.name.split("-")[1]):
                unmount(folder)
                shutil.rmtree(folder, ignore_errors=True)
    for bridge in Path("/sys/class/net").glob("fiber[0-9]*"):
        # another process may sweep at the same time
        with contextlib.suppress(OSError):
            if _is_gone((bridge / "ifalias").read_text().strip()):
                _ip("link", "del", bridge.name)


def _is_gone(owner: str) -> bool:
    """Whether a name is the number of a process that has ended."""
    return bool(re.fullmatch("[0-9a-f]+", owner)) and not Path(f"/proc/{int(owner, 16)}").exists()


def unmount(folder: Path) -> None:
    """Unmount the file systems that a killed daemon has left below a folder."""
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        target = line.split(" ")[1]
        if target.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", target], check=False)


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return ran(["ip", *words], env={"PATH": PATH})
