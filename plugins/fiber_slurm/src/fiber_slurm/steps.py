"""Steps of an allocation: command lines, questions' answers and the words of ``srun``; pure.

A job that is a step has the id ``ALLOCATION.KEY``. Slurm numbers steps only once they have a place, so
that a step is known by its name, which has the run and the id: ``fiber-RUN.ALLOCATION.KEY``. What runs
beside it has that name with ``.beside`` behind it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from fiber._base import values
from fiber.backend_parts.batch.names import run_of
from fiber.backend_parts.batch.system import Batch
from fiber.model import Capacity, Reason, ReasonKind
from fiber_slurm.config import SlurmConfig
from fiber_slurm.options import devices
from fiber_slurm.rows import END, counts_of, seconds_of

__all__ = [
    "BESIDE",
    "FORMAT",
    "NOT_OF_STEPS",
    "Allocation",
    "End",
    "Step",
    "end_of",
    "is_step",
    "read_allocation",
    "read_steps",
    "run_of_step",
    "step_command",
    "step_name",
    "surrounding",
    "used_devices",
]

_FIELDS = ("StepID", "StepName", "Nodes", "TimeLimit", "TimeUsed")
#: format of ``squeue --steps``
FORMAT = ",".join(f"{name}:{END}" for name in _FIELDS)
#: end of the names of steps beside others
BESIDE = ".beside"
#: settings that an allocation was made with, and that its steps cannot have
NOT_OF_STEPS = ("partition", "account", "qos", "options")
#: what an srun says of a program that it started
_STARTED = re.compile(r"\btask 0:|\bSTEP |StepId=")
_REASONS = (
    (r"DUE TO TIME LIMIT", ReasonKind.TIME_LIMIT, "its step was at its time limit"),
    (r"DUE TO PREEMPTION", ReasonKind.PREEMPTED, "its allocation was taken away"),
    (r"DUE TO NODE FAILURE|Node failure on", ReasonKind.NODE_LOST, "Slurm lost its node"),
    (r"oom-kill|Out Of Memory", ReasonKind.OOM, "by Slurm"),
    (r"\*\*\* STEP \S+ .*CANCELLED", ReasonKind.CANCELLED, "somebody cancelled its step"),
    (r"Cancelled pending job step", ReasonKind.CANCELLED, "somebody ended its srun"),
)
_BY_SHELLS = 128
#: nodes of an allocation that have the same, as ``scontrol --details`` shows them
_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=([\d,-]+) Mem=(\d+) GRES=(\S*)")
_RUNS = ("RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING")


@values.frozen(kw_only=True)
class Step:
    """A step that has a place, as ``squeue --steps`` shows it."""

    #: Slurm's id of it, for scancel
    number: str
    #: its name
    name: str
    #: its node
    host: str
    #: seconds until its own time limit, where it has one
    seconds_left: float | None


@values.frozen(kw_only=True)
class Allocation:
    """An allocation, as ``scontrol --details show job`` shows it."""

    #: Slurm's word for its state
    state: str
    #: CPUs of all its nodes, and of the one with the most; 0 where Slurm does not say
    cpus: int = 0
    most: int = 0
    #: memory of all its nodes in MB
    memory: int = 0
    #: devices by kind
    devices: Mapping[str, int] = values.field(factory=dict)

    @property
    def is_live(self) -> bool:
        """True if steps can be started in the allocation."""
        return self.state in _RUNS

    def capacity(self, used: Mapping[str, int]) -> Capacity:
        """Capacity of the allocation for jobs, without devices that are used."""
        free = {kind: count - used.get(kind, 0) for kind, count in self.devices.items()}
        return Capacity(cpus=float(self.cpus) or None, memory=self.memory or None, devices=free)


@values.frozen(kw_only=True)
class End:
    """End of a step, by its ``srun``."""

    #: exit code of its program, or minus the number of a signal
    code: int | None
    #: why, where that was not its program's doing
    reason: Reason | None = None
    #: Slurm's words
    message: str = ""


def surrounding(by: str, environ: Mapping[str, str]) -> str | None:
    """Id of the allocation that this program is to start steps in; None where it submits jobs.

    A job that Fiber submitted has one place, for one process: what runs in it and starts others submits
    jobs too, unless it was told to start steps. So does a program in a heterogeneous job, whose
    parts ``srun`` does not take for one allocation.

    Args:
        by: the setting.
        environ: this process's environment.
    """
    job = environ.get("SLURM_JOB_ID")
    if by == "sbatch" or not job:
        return None
    name = environ.get("SLURM_JOB_NAME", "")
    is_ours = run_of(name) is not None and run_of_step(name) is None
    is_mixed = "SLURM_HET_SIZE" in environ
    return None if by == "auto" and (is_ours or is_mixed) else job


def step_name(name: str, job_id: str) -> str:
    """Name of a step.

    Args:
        name: that of all jobs of its run.
        job_id: its id, ``ALLOCATION.KEY``.
    """
    return f"{name}.{job_id}"


def run_of_step(name: str) -> tuple[str, str] | None:
    """Run and id of a step with this name; None where it is not a job of Fiber's."""
    name, _, job_id = name.partition(".")
    run_id = run_of(name)
    return (run_id, job_id) if run_id is not None and is_step(job_id) else None


def is_step(job_id: str) -> bool:
    """True if the id is that of a step."""
    return job_id.count(".") == 1


def step_command(batch: Batch, config: SlurmConfig, job_id: str, number: int) -> Sequence[str]:
    """Command that runs a step, and waits for a place first.

    Args:
        batch: jobs that are submitted together.
        config: the settings.
        job_id: the step's id, ``ALLOCATION.KEY``.
        number: which of the jobs it is.
    """
    spec = batch.spec
    wanted = devices(spec.resources, config)
    words = [
        "srun",
        f"--jobid={job_id.partition('.')[0]}",
        f"--job-name={step_name(batch.name, job_id)}",
        # no more than it asks for, and that for itself
        "--exact",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={math.ceil(spec.resources.cpu or 1)}",
        # of a step that asks for none, all memory of its node, shared with the other steps
        f"--mem={'0' if spec.resources.memory is None else f'{spec.resources.memory}M'}",
        # it would have all devices of its node otherwise, and no other step a place
        f"--gres={wanted or 'none'}",
        "--mpi=none",
        "--input=none",
        "--export=ALL",
        "--chdir=/",
    ]
    settings = {"time": config.time, "constraint": config.constraint}
    words += [f"--{name}={value}" for name, value in settings.items() if value]
    if spec.avoid_hosts:
        words.append(f"--exclude={','.join(spec.avoid_hosts)}")
    # its standard input is nobody's, so that the script is an argument
    shell, _, script = batch.script.partition("\n")
    return [*words, *shell.removeprefix("#!").split(), "-c", f"{_INDEX}={number}\n{script}"]


_INDEX = "SLURM_ARRAY_TASK_ID"


def read_steps(output: str) -> Iterator[Step]:
    """The steps that are Fiber's, and what runs beside them.

    Args:
        output: of ``squeue --steps --noheader --Format=FORMAT``.
    """
    for line in output.splitlines():
        found = line.split(END)
        if len(found) < len(_FIELDS):
            continue
        number, name, host, limit, used = (word.strip() for word in found[: len(_FIELDS)])
        if run_of_step(name.removesuffix(BESIDE)) is None:
            continue
        most, spent = seconds_of(limit), seconds_of(used)
        left = None if most is None or spent is None else most - spent
        yield Step(number=number, name=name, host=host, seconds_left=left)


def read_allocation(output: str) -> Allocation:
    """An allocation.

    Args:
        output: of ``scontrol --details --oneliner show job ID``.
    """
    state = re.search(r"\bJobState=(\S+)", output)
    cpus = most = memory = 0
    found: dict[str, int] = {}
    # whether devices are among the numbers of all nodes is the site's to say
    for nodes, ids, megabytes, gres in _NODES.findall(output):
        count, of_each = _count_nodes(nodes), _count_ids(ids)
        most = max(most, of_each)
        cpus += count * of_each
        memory += count * int(megabytes)
        for kind, number in counts_of(gres).items():
            found[kind] = found.get(kind, 0) + count * number
    return Allocation(
        state=state[1] if state else "", cpus=cpus, most=most, memory=memory, devices=found
    )


def used_devices(output: str) -> Mapping[str, int]:
    """Devices that steps have, by kind.

    Args:
        output: of ``scontrol --oneliner show step ALLOCATION``.
    """
    found: dict[str, int] = {}
    for words in re.findall(r"\bTresPerNode=(\S+)", output):
        for kind, count in counts_of(re.sub(r"\bgres[:/]", "", words)).items():
            found[kind] = found.get(kind, 0) + count
    return found


def end_of(errors: str, code: int) -> End:
    """End of a step.

    Args:
        errors: what its srun wrote.
        code: exit code of srun.
    """
    if code > _BY_SHELLS:
        code = _BY_SHELLS - code
    for words, kind, message in _REASONS:
        if re.search(words, errors, re.IGNORECASE):
            return End(code=code, reason=Reason(kind), message=message)
    if code > 0 and not _STARTED.search(errors):
        lines = [re.sub(r"^\w+: (error: )?", "", line) for line in errors.splitlines()]
        message = "; ".join(line for line in lines if "temporarily disabled" not in line)
        return End(code=None, reason=Reason(ReasonKind.START), message=f"srun: {message}")
    return End(code=code)


def _count_ids(text: str) -> int:
    """Number of CPUs, or nodes, in ``0-2,5``."""
    total = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _count_nodes(names: str) -> int:
    """Number of nodes in ``a1,n[01-03,5]``."""
    total = 0
    for name in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", names):
        inner = re.search(r"\[([^\]]*)\]", name)
        total += _count_ids(inner[1]) if inner else 1
    return total
