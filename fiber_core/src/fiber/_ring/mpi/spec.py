"""Specification of a run of ``mpirun``, made of a command line or of a manifest; pure.

:class:`RunSpec` is what a run needs to know. :func:`split_command_line` reads that of ``fiber mpirun``: its
options, mpirun's options, the program. :func:`parse_manifest` reads a manifest of the MPI operator
(``MPIJob``, ``kubeflow.org/v2beta1``), which is run without the operator, and names every field that is
not supported; :func:`run_spec` turns it into a specification.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fiber._base import values
from fiber._config.convert import parse_cpu, parse_memory
from fiber._ring.mpi.ranks import MpiHost, Verdict, expected_hosts
from fiber.exceptions import FiberError
from fiber.model import Capabilities, ResourceRequest, Volume
from fiber.model.job import megabytes

#: name of the member agent that runs mpirun
LAUNCHER = "launcher"


@values.frozen(kw_only=True)
class Need:
    """What a job asks of the platform; None and empty mean what the settings say."""

    resources: ResourceRequest = values.field(factory=ResourceRequest)
    image: str | None = None
    volumes: tuple[Volume, ...] = ()


@values.frozen(kw_only=True)
class RunSpec:
    """Specification of a run: the program, its ranks, and the members' resources."""

    #: program and arguments of every rank; of the launcher where ``count`` is 0
    program: tuple[str, ...]
    #: number of ranks; 0 for a launcher of the user's own, which calls mpirun itself
    count: int
    #: members, in the order in which ranks fill them
    hosts: tuple[MpiHost, ...]
    #: the user's mpirun or mpiexec
    mpirun: str = "mpirun"
    #: its options
    options: tuple[str, ...] = ()
    #: True where ranks fill members one after another, False where options say otherwise
    strict: bool = True
    #: resources of a member, and of the launcher
    member: Need = values.field(factory=Need)
    launcher: Need = values.field(factory=Need)
    #: resources of members that differ, by name
    member_needs: Mapping[str, Need] = values.field(factory=dict)
    #: True where the first member shares the launcher's job and resources
    launcher_is_member: bool = False
    #: seconds within which all members must be up, and then all ranks
    start_timeout: float = 60.0
    #: additional environment of all programs
    env: Mapping[str, str] = values.field(factory=dict)
    #: seconds after which the run has failed
    deadline: float | None = None

    def __attrs_post_init__(self) -> None:
        # too few slots are an error before anything is started
        expected_hosts(self.count, self.hosts)

    def jobs(self) -> dict[tuple[str, ...], Need]:
        """Return the resources of each job, by the names of its members."""
        names = [host.name for host in self.hosts]
        shared = 1 if self.launcher_is_member else 0
        found = {(LAUNCHER, *names[:shared]): self.launcher}
        for name in names[shared:]:
            found[(name,)] = self.member_needs.get(name, self.member)
        return found


_SYNTAX = "N or N:slots=K,cpu=C,memory=MB,gpu=G"


@values.frozen(kw_only=True)
class MemberGroup:
    """Members with equal resources; None stands for the defaults of all members."""

    #: number of members
    members: int = values.field(validator=values.ge(1))
    #: most ranks of each
    slots: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    cpu: float | None = values.field(default=None, validator=values.optional(values.gt(0)))
    memory: int | None = None
    gpu: int | None = values.field(default=None, validator=values.optional(values.ge(1)))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "slots": int,
    "cpu": parse_cpu,
    "memory": parse_memory,
    "gpu": int,
}


def parse_group(argument: str) -> MemberGroup:
    """Parse a group, such as ``2:slots=4,gpu=1``.

    Raises:
        ValueError: invalid syntax; the text has the valid one.
    """
    number, _, rest = argument.partition(":")
    found: dict[str, Any] = {}
    try:
        for part in filter(None, rest.split(",")):
            name, _, value = part.partition("=")
            found[name] = _PARSERS[name](value)
        return MemberGroup(members=int(number), **found)
    except (ValueError, KeyError) as error:
        msg = f"{argument!r} is no group of members, which is {_SYNTAX}"
        raise ValueError(msg) from error


def expand_groups(
    groups: Sequence[MemberGroup], slots: int, common: Need
) -> tuple[tuple[MpiHost, ...], dict[str, Need]]:
    """Return the members of all groups in order, and the resources of each, by name.

    Args:
        groups: one or more groups.
        slots: slots of members whose group has no number of its own.
        common: resources of members whose group has none of its own.
    """
    hosts: list[MpiHost] = []
    needs: dict[str, Need] = {}
    for group in groups:
        devices = {} if group.gpu is None else {"gpu": group.gpu}
        resources = ResourceRequest(cpu=group.cpu, memory=group.memory, devices=devices)
        need = merge_needs(Need(resources=resources), common)
        for _ in range(group.members):
            name = f"member-{len(hosts)}"
            hosts.append(MpiHost(name, slots if group.slots is None else group.slots))
            needs[name] = need
    return tuple(hosts), needs


def merge_needs(first: Need, then: Need) -> Need:
    """Return ``first`` with the values of ``then`` where it has none."""
    upper, lower = first.resources, then.resources
    return Need(
        resources=ResourceRequest(
            cpu=lower.cpu if upper.cpu is None else upper.cpu,
            memory=lower.memory if upper.memory is None else upper.memory,
            devices={**lower.devices, **upper.devices},
        ),
        image=then.image if first.image is None else first.image,
        volumes=first.volumes or then.volumes,
    )


#: options of the several kinds of mpirun that map ranks; with one, any host with room is right
_MAPPING = (
    *("map-by", "rank-by", "rankfile", "rf", "bynode", "bycore", "byslot", "npernode", "N"),
    *("pernode", "npersocket", "ppr", "host", "H", "hosts", "hostlist", "hostfile", "machinefile"),
    *("f", "ppn", "perhost", "rr", "rmaps", "rank-by", "oversubscribe", "nooversubscribe"),
)


#: names of programs that start ranks
_STARTERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
#: their options without a value; unknown ones are taken to have one
_FLAGS = frozenset(
    {
        *("allow-run-as-root", "bynode", "byslot", "bycore", "display-map", "display-allocation"),
        *("merge-stderr-to-stdout", "nooversubscribe", "oversubscribe", "pernode", "q", "quiet"),
        *(
            "report-bindings",
            "tag-output",
            "v",
            "V",
            "verbose",
            "l",
            "prepend-rank",
            "rr",
            "genvall",
        ),
        *("genvnone", "nolocal", "do-not-launch", "timestamp-output", "usize"),
    }
)
#: their options with two values
_TWO_VALUES = frozenset({"mca", "gmca", "prtemca", "pmixmca", "genv", "env"})
_COUNTS = frozenset({"n", "np", "c"})


@values.frozen
class CommandLine:
    """A command line, split in three."""

    #: options of ``fiber mpirun``
    fiber_options: tuple[str, ...]
    #: options of mpirun, before the program
    options: tuple[str, ...]
    #: the program and its arguments
    program: tuple[str, ...]


def split_command_line(argv: Sequence[str], known: Mapping[str, bool]) -> CommandLine:
    """Split a command line into Fiber's options, mpirun's options and the program.

    Args:
        argv: the arguments.
        known: Fiber's options by name; True for those that have a value.

    Raises:
        FiberError: there are options of mpirun, and no ``--`` after them.
    """
    rest = list(argv)
    fiber_options: list[str] = []
    options: list[str] = []
    while rest and rest[0] != "--":
        argument = rest[0]
        name, equals, _ = argument.partition("=")
        if name in known and (not equals or name.startswith("--")):
            taken = 2 if known[name] and not equals else 1
            fiber_options += rest[:taken]
            del rest[:taken]
        elif argument.startswith("-") or options:
            options.append(rest.pop(0))
        else:
            break
    if rest[:1] == ["--"]:
        return CommandLine(tuple(fiber_options), tuple(options), tuple(rest[1:]))
    if options:
        msg = (
            f"{options[0]} is an option of mpirun's: write -- between its options and the program, "
            "as in fiber mpirun -np 4 --bind-to none -- ./program"
        )
        raise FiberError(msg)
    return CommandLine(tuple(fiber_options), (), tuple(rest))


def parse_mpirun(command: Sequence[str]) -> tuple[str, int | None, CommandLine] | None:
    """Parse a command line that begins with an mpirun.

    Returns:
        its path, the number of ranks if given, and its other options with the program; None for
        other commands.
    """
    if not command or command[0].rpartition("/")[2] not in _STARTERS:
        return None
    rest = list(command[1:])
    count: int | None = None
    options: list[str] = []
    while rest and rest[0].startswith("-"):
        name = rest[0].lstrip("-").partition("=")[0]
        if name in _COUNTS and len(rest) > 1 and rest[1].isdecimal():
            count = int(rest[1])
            del rest[:2]
            continue
        taken = 1 if name in _FLAGS or "=" in rest[0] else 3 if name in _TWO_VALUES else 2
        options += rest[:taken]
        del rest[:taken]
    return command[0], count, CommandLine((), tuple(options), tuple(rest))


def maps_ranks(options: Collection[str]) -> bool:
    """Return True if options of mpirun map ranks to hosts."""
    return any(
        option.startswith("-") and option.lstrip("-").partition("=")[0] in _MAPPING
        for option in options
    )


def rank_and_member_counts(count: int | None, slots: int, members: int | None) -> tuple[int, int]:
    """Return the numbers of ranks and members, from the options that were given.

    Raises:
        FiberError: the ranks do not fit on the members.
    """
    if count is None:
        members = members or 1
        return members * slots, members
    needed = -(-count // slots)
    if members is not None and members < needed:
        msg = (
            f"{count} ranks do not fit on {members} members of {slots} slots each; ask for "
            f"--members {needed}, or for more --slots"
        )
        raise FiberError(msg)
    return count, needed if members is None else members


# -- manifests

_API = "kubeflow.org/v2beta1"
_KIND = "MPIJob"
#: fields that need no support: jobs are reached without keys, members start before the launcher,
#: nothing is left to be collected, and mpirun itself is asked which MPI it is
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
#: commands of worker containers that only wait for a remote login
_SERVERS = frozenset({"sshd", "sleep"})
_CLEANED = frozenset({"All", "Running"})
_DEVICE = re.compile(r"[\w.-]+/(?P<kind>gpu|tpu)$")
#: name that Kubernetes takes for a pod's host, which is more than it wants of a name alone
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
#: most ranks, of which each is a word in memory: a slip of the pen is not to take all of it
_MAX_RANKS = 2**20
_REFERENCE = re.compile(r"\$\((\w+)\)")


@values.frozen(kw_only=True)
class MpiJob:
    """A job of a manifest."""

    #: name of the job
    name: str
    #: command of the launcher
    command: tuple[str, ...]
    #: number of workers, besides the launcher
    workers: int
    #: slots of each worker
    slots: int
    #: resources of each worker, and of the launcher
    worker: Need
    launcher: Need
    #: True where the launcher has the first ranks
    launcher_is_member: bool = False
    #: environment of the containers
    env: Mapping[str, str] = values.field(factory=dict)
    #: seconds after which the job has failed
    deadline: float | None = None
    #: attempts after the first one
    retries: int = 0
    #: True for a suspended job, which is not started
    suspended: bool = False
    #: paths of fields that are not supported
    unsupported: tuple[str, ...] = ()


def parse_manifest(document: Any) -> MpiJob:
    """Convert a manifest, parsed from YAML or JSON, to a job.

    Raises:
        FiberError: it is no MPIJob, lacks a required field, or has a name that no host can have.
    """
    root = _Field(document, "")
    kind, api = root.text("kind"), root.text("apiVersion")
    if (kind, api) != (_KIND, _API):
        msg = f"the manifest is of {api or 'no'} {kind or 'kind'}; {_API} {_KIND} is known"
        raise FiberError(msg)
    spec = root.field("spec")
    replicas = spec.field("mpiReplicaSpecs")
    launcher, worker = replicas.field("Launcher"), replicas.field("Worker")
    if not launcher.exists:
        msg = f"{launcher.path} is missing: it says what to run"
        raise FiberError(msg)
    policy = spec.field("runPolicy")
    env: dict[str, str] = {}
    launcher_need, command = _template(launcher, env)
    worker_need, worker_command = _template(worker, env)
    beside = bool(spec.take("runLauncherAsWorker", False))
    job = MpiJob(
        name=root.field("metadata").text("name") or "mpijob",
        command=tuple(_expanded(word, env) for word in command),
        # without a worker template one worker is as the launcher, unless that has ranks itself
        workers=worker.number("replicas", 1) if worker.exists else int(not beside),
        slots=spec.number("slotsPerWorker", 1),
        worker=worker_need if worker.exists else launcher_need,
        launcher=launcher_need,
        launcher_is_member=beside,
        env=env,
        deadline=policy.number("activeDeadlineSeconds", 0) or None,
        retries=policy.number("backoffLimit", 0),
        suspended=bool(policy.take("suspend", False)),
    )
    if not job.slots:
        msg = "spec.slotsPerWorker is 0, and a worker without a slot has no rank"
        raise FiberError(msg)
    if job.workers * job.slots > _MAX_RANKS:
        msg = f"{job.workers} workers of {job.slots} slots are more than {_MAX_RANKS} ranks"
        raise FiberError(msg)
    clean = str(policy.scalar("cleanPodPolicy", "All"))
    if clean not in _CLEANED:
        policy.unknown.append(f"cleanPodPolicy={clean}")
    if launcher.number("replicas", 1) != 1:
        launcher.unknown.append("replicas")
    if worker_command and PurePosixPath(worker_command[0]).name not in _SERVERS:
        worker.unknown.append("template.spec.containers[0].command")
    # pods are restarted by their controller; here a job starts once, and backoffLimit counts
    for one in (launcher, worker):
        one.take("restartPolicy", None)
    if not job.command:
        msg = f"{launcher.path} has no command: the program of an image cannot be looked up here"
        raise FiberError(msg)
    if not all(map(_LABEL.fullmatch, _host_names(job))):
        msg = (
            f"metadata.name is {job.name!r}, from which hosts get their names, such as "
            f"{_host_names(job)[-1]!r}: use lower case letters, digits and '-', at most 63 in all"
        )
        raise FiberError(msg)
    unsupported = sorted(path for path in root.unread() if path not in _MEANINGLESS)
    return values.evolve(job, unsupported=tuple(unsupported))


def _host_names(job: MpiJob) -> list[str]:
    """Return the names of a job's members in the order of their ranks."""
    workers = [f"{job.name}-worker-{number}" for number in range(job.workers)]
    return [f"{job.name}-launcher", *workers] if job.launcher_is_member else workers


def _template(replica: _Field, env: dict[str, str]) -> tuple[Need, list[str]]:
    """Return resources and command of one replica type; adds its environment to ``env``."""
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
        name, value = entry.text("name"), entry.scalar("value", None)
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
    # a volume of another kind stays unread, and so is reported as unsupported
    return Volume(source=claim, path=path, read_only=read_only) if claim else None


def _resources(field: _Field) -> ResourceRequest:
    requests, limits = field.mapping("requests"), field.mapping("limits")
    found = {**requests, **limits}
    devices = {}
    try:
        for name in list(found):
            if match := _DEVICE.fullmatch(name):
                devices[match["kind"]] = int(found.pop(name))
        cpu, memory = found.pop("cpu", None), found.pop("memory", None)
        field.unknown += [f"limits.{name}" for name in found]
        return ResourceRequest(
            cpu=None if cpu is None else parse_cpu(cpu),
            memory=None if memory is None else _megabytes(memory),
            devices=devices,
        )
    except (ValueError, TypeError, ArithmeticError) as error:
        msg = f"{field.path} makes no sense: {error}"
        raise FiberError(msg) from error


def _megabytes(value: Any) -> int:
    # a bare number is bytes in a manifest
    text = str(value)
    return math.ceil(int(text) / 2**20) if text.isdecimal() else megabytes(text)


def _expanded(word: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` in an argument, as Kubernetes does."""
    return _REFERENCE.sub(lambda found: env.get(found[1], found[0]), word)


class _Field:
    """A mapping in a manifest that tracks which fields were read, to report the others.

    Args:
        value: the mapping; None for a missing field.
        path: its path in the manifest.
    """

    def __init__(self, value: Any, path: str) -> None:
        self.exists = value is not None
        self.path = path
        #: fields that were read and are not supported
        self.unknown: list[str] = []
        self._fields: dict[str, list[_Field]] = {}
        if value is not None and not isinstance(value, Mapping):
            msg = f"{path or 'the manifest'} must have fields, got {reprlib.repr(value)}"
            raise FiberError(msg)
        # a field without a value counts as missing; YAML reads names such as "on" as no text
        self._value = {str(name): one for name, one in (value or {}).items() if one is not None}

    def take(self, name: str, default: Any) -> Any:
        """Return a field's value, and mark it as read."""
        return self._value.pop(name, default)

    def text(self, name: str) -> str:
        """Return a string; empty if missing."""
        found = self.take(name, "")
        if not isinstance(found, str):
            msg = f"{self._named(name)} must be a text, got {reprlib.repr(found)}"
            raise FiberError(msg)
        return found

    def number(self, name: str, default: int) -> int:
        """Return a non-negative integer."""
        found = self.take(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            msg = f"{self._named(name)} must be a whole number, got {reprlib.repr(found)}"
            raise FiberError(msg)
        return found

    def words(self, name: str) -> list[str]:
        """Return a list of strings."""
        return [str(self._scalar(word, name)) for word in self._list(name)]

    def scalar(self, name: str, default: Any) -> Any:
        """Return a value as a text can have it; aliases of YAML make more of a list than fits."""
        return self._scalar(self.take(name, default), name)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a mapping to single values as a whole, marked as read."""
        found = _Field(self.take(name, None), self._named(name))
        return {name: found.scalar(name, None) for name in list(found._value)}

    def _scalar(self, value: Any, name: str) -> Any:
        if isinstance(value, (Mapping, list, set)):
            msg = f"{self._named(name)} must have texts or numbers, got {reprlib.repr(value)}"
            raise FiberError(msg)
        return value

    def _list(self, name: str) -> Sequence[Any]:
        found = self.take(name, [])
        if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
            msg = f"{self._named(name)} must be a list, got {reprlib.repr(found)}"
            raise FiberError(msg)
        return found

    def field(self, name: str) -> _Field:
        """Return a nested mapping, which may be missing."""
        if name not in self._fields:
            self._fields[name] = [_Field(self.take(name, None), self._named(name))]
        return self._fields[name][0]

    def fields(self, name: str) -> list[_Field]:
        """Return the mappings in a list."""
        if name not in self._fields:
            self._fields[name] = [
                _Field(part, f"{self._named(name)}[{number}]")
                for number, part in enumerate(self._list(name))
            ]
        return self._fields[name]

    def skip(self) -> None:
        """Mark the whole mapping as unsupported."""
        self._value, self._fields = {}, {}
        self.unknown.append("")

    def unread(self) -> Iterator[str]:
        """Yield the paths of fields that were not read or are not supported."""
        for name in (*self._value, *self.unknown):
            yield self._named(name) if name else self.path
        for parts in self._fields.values():
            for part in parts:
                yield from part.unread()

    def _named(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def run_spec(job: MpiJob, start_timeout: float) -> RunSpec:
    """Return the specification of the run of a job.

    Raises:
        FiberError: its mpirun has no program, or its ranks need more slots.
    """
    hosts = tuple(MpiHost(name, job.slots) for name in _host_names(job))
    found = parse_mpirun(job.command)
    plan = RunSpec(
        program=job.command,
        count=0,
        hosts=hosts,
        member=job.worker,
        launcher=job.launcher,
        launcher_is_member=job.launcher_is_member,
        env=job.env,
        deadline=job.deadline,
        start_timeout=start_timeout,
    )
    if found is None:
        # a launcher of the user's own, which calls mpirun itself
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


def fit_to_capabilities(job: MpiJob, can: Capabilities) -> MpiJob:
    """Return the job without what a backend cannot do, which is added to ``unsupported``."""
    unread: list[str] = []
    kinds = {"Launcher": job.launcher, "Worker": job.worker}
    fit = {kind: _fit_need(need, can, f"{kind}'s", unread) for kind, need in kinds.items()}
    return values.evolve(
        job,
        launcher=fit["Launcher"],
        worker=fit["Worker"],
        unsupported=(*job.unsupported, *unread),
    )


def _fit_need(need: Need, can: Capabilities, whose: str, unread: list[str]) -> Need:
    asked = need.resources
    devices = asked.devices if can.devices else {}
    image = need.image if can.images else None
    volumes = need.volumes if can.volumes else ()
    lost = {
        "devices": devices != asked.devices,
        "image": image != need.image,
        "volumes": volumes != need.volumes,
    }
    unread += [f"the {whose} {what}, on this backend" for what, is_lost in lost.items() if is_lost]
    return Need(
        # cpu and memory are wishes where they are no limits
        resources=values.evolve(asked, devices=devices),
        image=image,
        volumes=volumes,
    )


def run_with_retries(
    run: Callable[[], Verdict], retries: int, report: Callable[[str], None]
) -> Verdict:
    """Run, and retry after failures; a run that the user ended is not retried.

    Args:
        run: runs the job.
        retries: most attempts after the first one.
        report: called with a sentence before each of them.
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
        report(f"{why}; it is tried again, at most {retries} times")
        retries -= 1
