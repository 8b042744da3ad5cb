"""Specification of a job's container: the body of the engine's create call; pure."""

from __future__ import annotations

import functools
import io
import json
import re
import secrets
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from fiber.backend_parts import first
from fiber.backend_parts.containers import UNNEEDED_CAPABILITIES, is_reduced
from fiber.model import JobSpec, ResourceRequest, Volume
from fiber_docker.config import DockerConfig, DockerTiming
from fiber_docker.endpoint import ENGINE_VARIABLE, NO_ENGINE, SHARED_ENGINE, SOCKET
from fiber_docker.orphans import MASTER_CONTAINER_LABEL, MASTER_LABEL

#: prefix of the keys of Fiber's labels
PREFIX = "fiber."
_NAME = 40
_MB = 1 << 20
#: file in which a container's first process writes how its program ended
EXIT_FILE = "/.fiber/end"
#: runs the program of so many bytes on standard input and leaves the rest for it to read
_LOADER = "stream=open(0,'rb',closefd=False);exec(stream.read(%d))"


@attrs.frozen(kw_only=True)
class ContainerContext:
    """Options of a container that do not come from the job's spec."""

    #: name of the image
    image: str
    #: network to join; None for the engine's default
    network: str | None = None
    #: identity of its master, by which orphans are found
    master: str = ""
    #: id of the container on the same engine that its master runs in; None outside of one
    master_container: str | None = None
    #: the user
    owner: str = ""
    #: further names of hosts with their addresses
    hosts: Mapping[str, str] = attrs.field(factory=dict)
    #: False where the engine starts nothing that may gain no privileges
    can_forbid_privileges: bool = True
    #: path of the engine's own socket on its machine; None to keep it from the job
    engine_socket: str | None = None
    #: seconds between the SIGTERM and the SIGKILL of ``docker stop``, and of an engine that ends
    stop: float = DockerTiming().stop
    #: seconds between the two where the starter of an attached program was killed
    orphan: float = DockerTiming().orphan

    @property
    def stop_seconds(self) -> int:
        """The same as the engine takes it."""
        return max(1, round(self.stop))


@attrs.frozen(kw_only=True)
class ContainerSpec:
    """A container to create, with what is sent to it before and after its start."""

    #: its name, unique
    name: str
    #: body of the engine's call
    body: dict[str, Any] = attrs.field(repr=False)
    #: written to its standard input at its start
    stdin: bytes = attrs.field(default=b"", repr=False)
    #: unpacked into its root folder before its start
    files: bytes | None = attrs.field(default=None, repr=False)


def container_spec(
    spec: JobSpec, config: DockerConfig, context: ContainerContext, *, wrapped: bool = True
) -> ContainerSpec:
    """Specify the container of a job.

    Args:
        spec: the job.
        config: settings.
        context: options that do not come from the spec.
        wrapped: False to run a program that is not Fiber's as the first process itself, for images
            without Python.
    """
    argv, stdin, env = _program(spec, config, context, wrapped=wrapped)
    env[ENGINE_VARIABLE] = NO_ENGINE if context.engine_socket is None else SHARED_ENGINE
    if spec.entry is not None:
        env["FIBER_GRACE"] = str(context.stop_seconds)
    # Fiber's own supervisor, a program under our first process, or a program that is the first
    kind = "process" if spec.entry is not None else "program" if wrapped else "bare"
    body: dict[str, Any] = {
        "Image": context.image,
        # the image's own would run in place of the program
        "Entrypoint": list(argv[:1]),
        "Cmd": list(argv[1:]),
        # a name without a value is taken out of what the image sets
        "Env": [
            *(f"{key}={value}" for key, value in {**spec.env, **env}.items()),
            *sorted(spec.unset_env - spec.env.keys() - env.keys()),
        ],
        "Labels": _labels(spec, config, context, kind),
        "OpenStdin": bool(stdin),
        "StdinOnce": bool(stdin),
        "AttachStdin": bool(stdin),
        "AttachStdout": not spec.detached,
        "AttachStderr": not spec.detached,
        "Tty": False,
        "StopTimeout": context.stop_seconds,
        # whatever the image has
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host(spec, config, context),
    }
    user, folder = config.user, spec.cwd or config.workdir
    if user is not None:
        body["User"] = user
    if folder is not None:
        body["WorkingDir"] = folder
    return ContainerSpec(
        name=unique_name(spec.run_id, spec.name),
        body=body,
        stdin=stdin,
        files=_exit_file_archive() if kind == "program" else None,
    )


def unique_name(run_id: str, name: str) -> str:
    """A name that every engine accepts, made unique by random digits."""
    word = re.sub(r"[^a-zA-Z0-9_.]+", "-", name).strip("-._")[:_NAME].strip("-._").lower()
    return f"fiber-{run_id}-{word or 'job'}-{secrets.token_hex(3)}"


def _program(
    spec: JobSpec, config: DockerConfig, context: ContainerContext, *, wrapped: bool
) -> tuple[list[str], bytes, dict[str, str]]:
    """The first process: its arguments, its standard input, and its variables."""
    private = spec.private
    if spec.entry is not None:
        if private is None:
            return [config.python, *spec.argv[1:]], b"", {}
        # with its length: a connection with TLS cannot be closed by half
        variable = {"FIBER_BOOTSTRAP": f"stdin:{len(private)}"}
        return [config.python, *spec.argv[1:]], private, variable
    if not wrapped:
        return list(spec.argv), b"", {}
    source = first.text().encode()
    length = -1 if private is None else len(private)
    given = "source" if spec.detached else f"bond:{context.orphan:g}"
    loader = [config.python, "-I", "-S", "-c", _LOADER % len(source)]
    return [*loader, EXIT_FILE, given, str(length), *spec.argv], source + (private or b""), {}


@functools.cache
def _exit_file_archive() -> bytes:
    """An archive with a file that any user of the container can write."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        folder = tarfile.TarInfo(".fiber")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        file = tarfile.TarInfo(".fiber/end")
        file.mode = 0o666
        archive.addfile(file)
    return stream.getvalue()


def _labels(
    spec: JobSpec, config: DockerConfig, context: ContainerContext, kind: str
) -> dict[str, str]:
    labels = dict(pair.split("=", 1) for pair in config.labels)
    labels |= {f"{PREFIX}label.{key}": value for key, value in spec.labels.items()}
    labels |= {
        f"{PREFIX}run": spec.run_id,
        f"{PREFIX}name": spec.name,
        f"{PREFIX}argv": json.dumps(spec.argv),
        f"{PREFIX}owner": context.owner,
        MASTER_LABEL: context.master,
        f"{PREFIX}detached": str(int(spec.detached)),
        f"{PREFIX}kind": kind,
    }
    if context.master_container is not None:
        labels[MASTER_CONTAINER_LABEL] = context.master_container
    return labels


def _host(spec: JobSpec, config: DockerConfig, context: ContainerContext) -> dict[str, Any]:
    host: dict[str, Any] = {
        "RestartPolicy": {"Name": "no"},
        # a process of Fiber's reports over its connection, and if its master is killed,
        # no program is left to remove its container
        "AutoRemove": spec.entry is not None,
        **_limits(spec.resources),
    }
    if is_reduced(config.security, spec):
        is_restricted = config.security == "restricted"
        host["CapDrop"] = ["ALL"] if is_restricted else list(UNNEEDED_CAPABILITIES)
        if context.can_forbid_privileges:
            host["SecurityOpt"] = ["no-new-privileges"]
    if config.shm_size is not None:
        host["ShmSize"] = config.shm_size * _MB
    if context.network is not None:
        host["NetworkMode"] = context.network
    hosts = [*config.extra_hosts, *(f"{name}:{at}" for name, at in context.hosts.items())]
    if hosts:
        host["ExtraHosts"] = hosts
    mounts = list(_mounts((*_written(config.volumes), *spec.volumes)))
    if context.engine_socket is not None:
        socket = {"Type": "bind", "Source": context.engine_socket, "Target": SOCKET}
        mounts.append(socket)
    if mounts:
        host["Mounts"] = mounts
    return host


def _limits(resources: ResourceRequest) -> dict[str, int]:
    limits = {}
    if resources.cpu is not None:
        limits["NanoCpus"] = round(resources.cpu * 1e9)
    if resources.memory is not None:
        limits["Memory"] = resources.memory * _MB
        # the same number: no swap, so that the limit is one
        limits["MemorySwap"] = resources.memory * _MB
    return limits


def _written(words: Iterable[str]) -> Iterable[Volume]:
    for word in words:
        source, _, path = word.partition(":")
        path, _, mode = path.partition(":")
        yield Volume(source=source, path=path, read_only=mode == "ro")


def _mounts(volumes: Iterable[Volume]) -> Iterable[dict[str, Any]]:
    for volume in volumes:
        kind = "bind" if PurePosixPath(volume.source).is_absolute() else "volume"
        mount = {"Type": kind, "Source": volume.source, "Target": volume.path}
        yield {**mount, "ReadOnly": True} if volume.read_only else mount
