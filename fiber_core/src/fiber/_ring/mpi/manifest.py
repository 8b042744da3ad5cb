"""Jobs of the MPI operator, as its manifests describe them (MPIJob, v2beta1): what of them we run.

Runs a job of the MPI operator's on the selected backend, without the operator.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fiber._base import values
from fiber._ring.mpi.arguments import Plan, maps_ranks, read_mpirun
from fiber._ring.mpi.crew import Need
from fiber._ring.mpi.hosts import Host
from fiber._ring.mpi.vigil import Verdict
from fiber.exceptions import FiberError
from fiber.model import Capabilities, ResourceRequest, Volume
from fiber.model.resource import megabytes

__all__ = ["MpiJob", "fitted", "plan_of", "read", "try_again"]

_API = "kubeflow.org/v2beta1"
_KIND = "MPIJob"
#: what such a job has and we need not be told: jobs are reached without keys, members come before
#: the launcher, nothing is left to be collected, and which MPI it is its mpirun tells
_MEANINGLESS = frozenset(
    {
        "spec.sshAuthMountPath",
        "spec.launcherCreationPolicy",
        "spec.mpiImplementation",
        "spec.runPolicy.ttlSecondsAfterFinished",
        "metadata.labels",
        "metadata.annotations",
        "metadata.namespace",
        "status",
    }
)
#: what containers of workers run so that somebody can come in, which nobody needs to here
_SERVERS = frozenset({"sshd", "sleep"})
_CLEANED = frozenset({"All", "Running"})
_DEVICE = re.compile(r"[\w.-]+/(?P<kind>gpu|tpu)$")
_REFERENCE = re.compile(r"\$\((\w+)\)")


@values.frozen(kw_only=True)
class MpiJob:
    """What a manifest asks for."""

    #: its name
    name: str
    #: what its launcher runs
    command: tuple[str, ...]
    #: how many workers, besides the launcher
    workers: int
    #: slots of each
    slots: int
    #: what each worker needs, and the launcher
    worker: Need
    launcher: Need
    #: True where ranks run beside the launcher too, before those of workers
    launcher_is_member: bool = False
    #: environment of its containers
    env: Mapping[str, str] = values.field(factory=dict)
    #: seconds after which it has failed
    deadline: float | None = None
    #: tries after the first one
    retries: int = 0
    #: True where nothing is to be started
    suspended: bool = False
    #: fields that are there and that we do not do, by their paths
    unsupported: tuple[str, ...] = ()


def read(document: Any) -> MpiJob:
    """Read a manifest, as it is once YAML or JSON was parsed.

    Raises:
        FiberError: it is no MPIJob, or lacks what every one has.
    """
    root = _Field(document, "")
    kind, api = root.text("kind"), root.text("apiVersion")
    if (kind, api) != (_KIND, _API):
        msg = f"the manifest is of {api or 'no'} {kind or 'kind'}; {_API} {_KIND} is known"
        raise FiberError(msg)
    spec = root.field("spec")
    replicas = spec.field("mpiReplicaSpecs")
    launcher, worker = replicas.field("Launcher"), replicas.field("Worker")
    if not launcher.there:
        msg = f"{launcher.path} is missing: it says what to run"
        raise FiberError(msg)
    policy = spec.field("runPolicy")
    env: dict[str, str] = {}
    launching, command = _template(launcher, env)
    working, serving = _template(worker, env)
    beside = bool(spec.take("runLauncherAsWorker", False))
    job = MpiJob(
        name=root.field("metadata").text("name") or "mpijob",
        command=tuple(_expanded(word, env) for word in command),
        # without workers the launcher has company for its ranks, unless it takes them itself
        workers=worker.number("replicas", 1) if worker.there else int(not beside),
        slots=spec.number("slotsPerWorker", 1),
        worker=working if worker.there else launching,
        launcher=launching,
        launcher_is_member=beside,
        env=env,
        deadline=policy.number("activeDeadlineSeconds", 0) or None,
        retries=policy.number("backoffLimit", 0),
        suspended=bool(policy.take("suspend", False)),
    )
    clean = policy.take("cleanPodPolicy", "All")
    if clean not in _CLEANED:
        policy.unknown.append(f"cleanPodPolicy={clean}")
    if launcher.number("replicas", 1) != 1:
        launcher.unknown.append("replicas")
    if serving and PurePosixPath(serving[0]).name not in _SERVERS:
        worker.unknown.append("template.spec.containers[0].command")
    # how pods begin again is their controller's; here a job begins once, and backoffLimit counts
    for one in (launcher, worker):
        one.take("restartPolicy", None)
    if not job.command:
        msg = f"{launcher.path} has no command: the program of an image cannot be looked up here"
        raise FiberError(msg)
    unsupported = sorted(path for path in root.left() if path not in _MEANINGLESS)
    return values.evolve(job, unsupported=tuple(unsupported))


def _template(replica: _Field, env: dict[str, str]) -> tuple[Need, list[str]]:
    """What one kind of pods needs, and its command; the environment is added to ``env``."""
    pod = replica.field("template").field("spec")
    pod.take("restartPolicy", None)
    containers = pod.fields("containers")
    if not containers:
        return Need(), []
    container = containers[0]
    for other in containers[1:]:
        other.skip()
    container.take("name", None)
    container.take("imagePullPolicy", None)
    command = [*container.words("command"), *container.words("args")]
    for entry in container.fields("env"):
        name, value = entry.text("name"), entry.take("value", None)
        if value is not None:
            env[name] = str(value)
    volumes = {v.text("name"): v for v in pod.fields("volumes")}
    mounts = [_mounted(mount, volumes) for mount in container.fields("volumeMounts")]
    need = Need(
        resources=_resources(container.field("resources")),
        image=container.text("image") or None,
        volumes=tuple(volume for volume in mounts if volume is not None),
    )
    return need, command


def _mounted(mount: _Field, volumes: Mapping[str, _Field]) -> Volume | None:
    name = mount.text("name")
    source = volumes.get(name)
    claim = "" if source is None else source.field("persistentVolumeClaim").text("claimName")
    path = mount.text("mountPath")
    read_only = bool(mount.take("readOnly", False))
    # of another kind: its field is left over, and so it is named
    return Volume(source=claim, path=path, read_only=read_only) if claim else None


def _resources(field: _Field) -> ResourceRequest:
    requests, limits = field.mapping("requests"), field.mapping("limits")
    found = {**requests, **limits}
    devices = {}
    for name in list(found):
        if match := _DEVICE.fullmatch(name):
            devices[match["kind"]] = int(found.pop(name))
    cpu, memory = found.pop("cpu", None), found.pop("memory", None)
    field.unknown += [f"limits.{name}" for name in found]
    return ResourceRequest(
        cpu=None if cpu is None else _cpus(cpu),
        memory=None if memory is None else _megabytes(memory),
        devices=devices,
    )


def _cpus(said: Any) -> float:
    text = str(said)
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _megabytes(said: Any) -> int:
    # a bare number is bytes in a manifest
    text = str(said)
    return math.ceil(int(text) / 2**20) if text.isdecimal() else megabytes(text)


def _expanded(word: str, env: Mapping[str, str]) -> str:
    """A word with the ``$(NAME)`` of manifests replaced."""
    return _REFERENCE.sub(lambda found: env.get(found[1], found[0]), word)


class _Field:
    """A part of a manifest that remembers what of it was read, so that the rest can be named."""

    def __init__(self, value: Any, path: str) -> None:
        self.there = value is not None
        self.path = path
        #: what was read and is more than we can do
        self.unknown: list[str] = []
        self._fields: dict[str, list[_Field]] = {}
        if value is not None and not isinstance(value, Mapping):
            msg = f"{path or 'the manifest'} must have fields, got {value!r}"
            raise FiberError(msg)
        # a name without a value is as good as none
        self._value: dict[str, Any] = {k: v for k, v in (value or {}).items() if v is not None}

    def take(self, name: str, default: Any) -> Any:
        """A value, which is read with this."""
        return self._value.pop(name, default)

    def text(self, name: str) -> str:
        """A text, empty where there is none."""
        found = self.take(name, "")
        if not isinstance(found, str):
            msg = f"{self._named(name)} must be a text, got {found!r}"
            raise FiberError(msg)
        return found

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        found = self.take(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            msg = f"{self._named(name)} must be a whole number, got {found!r}"
            raise FiberError(msg)
        return found

    def words(self, name: str) -> list[str]:
        """A list of texts."""
        found = self.take(name, [])
        if not isinstance(found, Sequence) or isinstance(found, str):
            msg = f"{self._named(name)} must be a list, got {found!r}"
            raise FiberError(msg)
        return [str(word) for word in found]

    def mapping(self, name: str) -> dict[str, Any]:
        """Names and values, all of them read."""
        return dict(self.take(name, None) or {})

    def field(self, name: str) -> _Field:
        """The part of a name, which may be missing."""
        if name not in self._fields:
            self._fields[name] = [_Field(self.take(name, None), self._named(name))]
        return self._fields[name][0]

    def fields(self, name: str) -> list[_Field]:
        """The parts in a list."""
        if name not in self._fields:
            parts = self.take(name, None) or []
            self._fields[name] = [
                _Field(part, f"{self._named(name)}[{number}]") for number, part in enumerate(parts)
            ]
        return self._fields[name]

    def skip(self) -> None:
        """All of it is more than we can do."""
        self._value, self._fields = {}, {}
        self.unknown.append("")

    def left(self) -> Iterator[str]:
        """The paths of what was not read."""
        for name in (*self._value, *self.unknown):
            yield self._named(name) if name else self.path
        for parts in self._fields.values():
            for part in parts:
                yield from part.left()

    def _named(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def plan_of(job: MpiJob, start_timeout: float) -> Plan:
    """What a manifest's job is as a plan.

    Raises:
        FiberError: its mpirun has no program, or its ranks have no room.
    """
    names = [f"{job.name}-worker-{number}" for number in range(job.workers)]
    if job.launcher_is_member:
        names.insert(0, f"{job.name}-launcher")
    hosts = tuple(Host(name, job.slots) for name in names)
    found = read_mpirun(job.command)
    plan = Plan(
        program=job.command,
        count=0,
        hosts=hosts,
        member=job.worker,
        launcher=job.launcher,
        launcher_is_member=job.launcher_is_member,
        env=job.env,
        deadline=job.deadline,
        start_timeout=start_timeout,
        token=secrets.token_hex(16),
    )
    if found is None:
        # a launcher of another kind, that calls mpirun or its like itself
        return plan
    mpirun, count, words = found
    if not words.program:
        msg = f"the launcher's command names no program: {' '.join(job.command)}"
        raise FiberError(msg)
    return values.evolve(
        plan,
        program=words.program,
        count=sum(host.slots for host in hosts) if count is None else count,
        mpirun=mpirun,
        options=words.options,
        strict=not maps_ranks(words.options),
    )


def fitted(job: MpiJob, can: Capabilities) -> MpiJob:
    """The job without what a backend does not do, which is added to what is unsupported."""
    left: list[str] = []
    kinds = {"Launcher": job.launcher, "Worker": job.worker}
    fit = {kind: _fitted(need, can, f"{kind}'s", left) for kind, need in kinds.items()}
    return values.evolve(
        job,
        launcher=fit["Launcher"],
        worker=fit["Worker"],
        unsupported=(*job.unsupported, *left),
    )


def _fitted(need: Need, can: Capabilities, whose: str, left: list[str]) -> Need:
    asked = need.resources
    cpu = asked.cpu if can.cpu_limit else None
    memory = asked.memory if can.memory_limit else None
    devices = asked.devices if can.devices else {}
    image = need.image if can.images else None
    volumes = need.volumes if can.volumes else ()
    lost = {
        "cpu": cpu != asked.cpu,
        "memory": memory != asked.memory,
        "devices": devices != asked.devices,
        "image": image != need.image,
        "volumes": volumes != need.volumes,
    }
    left += [f"the {whose} {what}, on this backend" for what, is_lost in lost.items() if is_lost]
    return Need(
        resources=ResourceRequest(cpu=cpu, memory=memory, devices=devices),
        image=image,
        volumes=volumes,
    )


def try_again(run: Callable[[], Verdict], retries: int, say: Callable[[str], None]) -> Verdict:
    """Run it, and again while it fails, as often as it may.

    One that somebody ended is not run again.
    """
    while True:
        try:
            verdict = run()
        except FiberError as error:
            if not retries:
                raise
            why = str(error)
        else:
            if verdict.code == 0 or verdict.is_asked or not retries:
                return verdict
            why = verdict.why or f"it ended with {verdict.code}"
        say(f"{why}; it is tried again, at most {retries} times")
        retries -= 1
