"""Slurm's commands: submission, questions and signals, of batch jobs and of steps; ``fiber doctor slurm``."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fiber.backend_parts.batch.system import Batch, BatchSystem, Done, Phase, Row, call
from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError
from fiber.model import Capacity, Check
from fiber_slurm import steps
from fiber_slurm.allocation import Steps, StepTiming, node_of
from fiber_slurm.config import SlurmConfig
from fiber_slurm.options import submission
from fiber_slurm.rows import FORMAT, counts_of, read_allocations, read_rows

__all__ = ["SlurmSystem", "run_checks"]


log = logging.getLogger("fiber")

#: what Slurm's commands say where slurmctld does not answer, or may not be asked
_UNAVAILABLE = re.compile(
    r"unable to contact|timed out|connection (refused|failure|reset)|connect failure"
    r"|communication|zero bytes|munge|unauthenticated|authentication|try again"
    r"|could not establish a configuration source|no such host|unable to resolve|in standby mode"
    r"|slurm backup controller",
    re.IGNORECASE,
)
_RAW = "PATH=/usr/bin:/bin; stty raw -echo <&1 && printf '\\006fiber\\n' && exec \"$@\""
#: options of scancel by which what waits, and nothing else, leaves the queue
_WAITING = ("--state=PENDING", "--signal=KILL")
#: options that a refusal is about
_ASKED = (
    "--account=",
    "--constraint=",
    "--cpus",
    "--gres=",
    "--mem=",
    "--partition=",
    "--qos=",
    "--time=",
)
_GONE = re.compile(
    r"invalid job id|already completing|already completed|job/step already", re.IGNORECASE
)
#: variables of a submitter that Slurm's commands read
_OF_SLURM = re.compile(r"SBATCH_|SLURM_CONF$|SLURM_CLUSTERS$|SLURM_TIME_FORMAT$|LANG$|LC_")


class SlurmSystem(BatchSystem):
    """A cluster that Slurm's commands reach.

    Args:
        config: settings.
        timeout: seconds for a command to answer.
        timing: durations of steps.
    """

    title = "Slurm"
    index_variable = "SLURM_ARRAY_TASK_ID"
    host_variable = "SLURMD_NODENAME"
    # MaxArraySize is 1001 where a site has not set it
    most = 1000

    def __init__(self, config: SlurmConfig, timeout: float, timing: StepTiming) -> None:
        self._config = config
        self._timeout = timeout
        self._user = str(os.getuid())
        self._settings = ""
        self._steps = Steps(config, timing)
        self._choosing = threading.Lock()
        self._chosen = False
        self._allocation: str | None = None

    # -- jobs

    def allocation(self) -> str | None:
        """Id of the allocation whose steps jobs are; None where they are batch jobs.

        Raises:
            SubmitError: they shall be steps, and this program is in no allocation.
        """
        with self._choosing:
            if not self._chosen:
                self._allocation = self._choose()
                self._chosen = True
            return self._allocation

    def _choose(self) -> str | None:
        by = self._config.by
        job = steps.surrounding(by, os.environ)
        if job is None:
            if by == "srun":
                msg = (
                    "jobs shall be steps (FIBER_SLURM_BY=srun), and SLURM_JOB_ID names no allocation: "
                    "run this program within salloc or a job script, or set FIBER_SLURM_BY=sbatch"
                )
                raise SubmitError(msg)
            return None
        if by == "auto" and not self._look_up(job).is_live:
            return None
        ignored = [name for name in steps.NOT_OF_STEPS if getattr(self._config, name)]
        if ignored:
            log.warning(
                "fiber: jobs are steps of the allocation %s, for which these settings of slurm do not "
                "hold: %s (FIBER_SLURM_BY=sbatch submits batch jobs)",
                job,
                ", ".join(ignored),
            )
        return job

    def _look_up(self, job: str) -> steps.Allocation:
        done = self._ask(["scontrol", "--details", "--oneliner", "show", "job", job])
        # one that is over for long is unknown
        return steps.read_allocation(done.output if done.code == 0 else "")

    def submit(self, batch: Batch) -> Sequence[str]:
        """Submit jobs by sbatch, several as an array; or start an srun for each."""
        job = self.allocation()
        if job is not None:
            return self._steps.submit(
                batch,
                job,
                self._look_up(job),
                program=_program("srun"),
                environ=_environment(self._config.conf),
            )
        words = submission(batch, self._config)
        done = self._ask(words, stdin=batch.script)
        if done.code:
            asked = " ".join(word for word in words if word.startswith(_ASKED))
            msg = f"Slurm refuses {batch.spec.name}: {_words(done)}"
            msg += f"; asked for {asked}" if asked else ""
            raise SubmitError(msg)
        # ID, or ID;CLUSTER
        job_id = done.output.split(";")[0].strip()
        if not job_id.isdigit():
            msg = f"sbatch answered {done.output!r} where a job's id was expected"
            raise BackendError(msg)
        count = len(batch.specs)
        return [job_id] if count == 1 else [f"{job_id}_{number}" for number in range(count)]

    def rows(self) -> Sequence[Row]:
        """Ask by one squeue; by a second one for steps, where there is an allocation of this user."""
        words = ("squeue", f"--user={self._user}", "--states=all", "--array", "--noheader")
        output = self._answer(*words, f"--Format={FORMAT}")
        allocations = read_allocations(output)
        found = list(read_rows(output))
        live = (row for row in allocations.values() if row.phase is not Phase.WAITING)
        if self._steps.are_there or any(
            not row.run_id and row.phase is not Phase.ENDED for row in live
        ):
            found += self._steps.rows(self._placed(), allocations)
        return found

    def _placed(self) -> Sequence[steps.Step]:
        """Steps that have a place."""
        words = ("squeue", "--local", "--steps", f"--user={self._user}", "--noheader")
        return list(steps.read_steps(self._answer(*words, f"--Format={steps.FORMAT}")))

    def signal(self, ids: Sequence[str], signum: int) -> None:
        """Send a signal by scancel to the scripts of jobs; those that wait leave the queue."""
        name = signal.Signals(signum).name
        of_steps = [job_id for job_id in ids if steps.is_step(job_id)]
        if of_steps:
            self._steps.signal(
                of_steps,
                self._placed(),
                signum,
                # its exit code is of no use: of a step that got the signal it tells an old errno
                lambda numbers: self._ask(["scancel", f"--signal={name}", *numbers]),
            )
        ids = [job_id for job_id in ids if not steps.is_step(job_id)]
        if not ids:
            return
        if signum != signal.SIGKILL:
            # of an array of which some wait, scancel tries in vain for minutes
            self._cancel(ids, "--batch", *_WAITING)
        self._cancel(ids, "--batch", f"--signal={name}")

    def end(self, ids: Sequence[str]) -> None:
        """Ask slurmctld to end jobs, because where a slurmstepd has died nobody passes a signal on."""
        if jobs := [job_id for job_id in ids if not steps.is_step(job_id)]:
            self._cancel(jobs)
        if of_steps := [job_id for job_id in ids if steps.is_step(job_id)]:
            # slurmctld passes it on anyhow; one that had no place the last time may have one now
            self.signal(of_steps, signal.SIGKILL)

    def _cancel(self, ids: Sequence[str], *options: str) -> None:
        done = self._ask(["scancel", *options, *ids])
        if done.code and not _all_gone(done):
            msg = f"Slurm does not take a signal for {', '.join(ids)}: {_words(done)}"
            raise BackendError(msg)

    def guard(self, name: str) -> Sequence[Sequence[str]]:
        """Commands by which what waits leaves the queue, and the rest gets SIGTERM, then SIGKILL.

        With the last one the jobs are over for slurmctld, too; see :meth:`end`.
        """
        conf = self._config.conf
        environ = ("env", f"SLURM_CONF={conf}") if conf else ()
        if self.allocation() is not None:
            return self._steps.guard(name, environ)
        end = (*environ, "scancel", "--quiet", f"--user={self._user}", f"--name={name}")
        words = (*end, "--batch")
        kill = f"{shlex.join((*words, '--signal=KILL'))}; exec {shlex.join(end)}"
        return [[*words, *_WAITING], [*words, "--signal=TERM"], ["/bin/sh", "-c", kill]]

    def beside(self, job_id: str, argv: Sequence[str], *, tty: bool = False) -> Sequence[str]:
        """Command that runs a program in a job's allocation."""
        # of a job that this program is itself in, srun would take the options
        given = {"TERM": os.environ.get("TERM", "dumb"), **_environment(self._config.conf)}
        words = ["env", "-i", *(f"{name}={value}" for name, value in given.items())]
        where = [f"--jobid={job_id}"]
        if steps.is_step(job_id):
            step = node_of(job_id, self._placed())
            name = step.name + steps.BESIDE
            where = [
                f"--jobid={job_id.partition('.')[0]}",
                f"--nodelist={step.host}",
                f"--job-name={name}",
            ]
        words += [
            shutil.which("srun") or "srun",
            *where,
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--quiet",
        ]
        words += ["--export=NONE", "--unbuffered" if not tty else "--pty", "--chdir=/"]
        return [*words, *argv]

    def stream(self, job_id: str, argv: Sequence[str]) -> Sequence[str]:
        """Like :meth:`beside`, with streams of bytes.

        srun passes on whole lines alone, unless it is unbuffered, by a terminal on the node. That
        is made to change nothing before anything is said through it.
        """
        words = ("/bin/sh", "-c", _RAW, "sh", *argv)
        return self.beside(job_id, words)

    # -- the cluster

    def capacity(self) -> Capacity:
        """CPUs, memory and free devices of the nodes that are up, or of the allocation."""
        job = self.allocation()
        if job is not None:
            shown = self._ask(["scontrol", "--oneliner", "show", "step", job])
            return self._look_up(job).capacity(steps.used_devices(shown.output))
        words = ["sinfo", "--noheader", "--Node", "--exact"]
        if self._config.partition:
            words.append(f"--partition={self._config.partition}")
        fields = ("NodeList", "StateCompact", "CPUs", "Memory", "Gres", "GresUsed")
        output = self._answer(*words, f"--Format={','.join(f'{name}:|' for name in fields)}")
        nodes = {}
        for line in output.splitlines():
            name, *rest = (word.strip() for word in line.split("|"))
            nodes[name] = rest
        cpus = memory = 0
        devices: dict[str, int] = {}
        for state, of_cpus, of_memory, gres, used, *_ in nodes.values():
            if re.match(r"down|drain|fail|inval|unk|maint|boot", state) or state.endswith("*"):
                continue
            cpus += int(of_cpus)
            memory += int(of_memory)
            taken = counts_of(used)
            for kind, count in counts_of(gres).items():
                devices[kind] = devices.get(kind, 0) + count - taken.get(kind, 0)
        return Capacity(cpus=float(cpus), memory=memory, devices=devices)

    def grace(self) -> float | None:
        """The cluster's KillWait."""
        found = self._setting("KillWait", r"\d+")
        return float(found) if found else None

    def cluster(self) -> str:
        """The cluster's name."""
        return self._setting("ClusterName", r"[\w-]+") or "default"

    def settings(self) -> str:
        """Output of ``scontrol show config``."""
        return self._answer("scontrol", "show", "config")

    def _setting(self, name: str, form: str) -> str | None:
        """A setting of the cluster; asked for once."""
        if not self._settings:
            self._settings = self.settings()
        found = re.search(rf"^{name}\s*=\s*({form})", self._settings, re.MULTILINE)
        return found[1] if found else None

    def checks(self) -> Iterable[Check]:
        """Checks for ``fiber doctor``."""
        return run_checks(self, self._config)

    # -- within

    def _answer(self, *argv: str) -> str:
        done = self._ask(argv)
        if done.code:
            msg = f"{argv[0]} failed: {_words(done)}"
            raise BackendError(msg)
        return done.output

    def _ask(self, argv: Sequence[str], stdin: str = "") -> Done:
        try:
            done = call(
                argv,
                title=self.title,
                timeout=self._timeout,
                stdin=stdin,
                env=_environment(self._config.conf),
            )
            if done.code and _UNAVAILABLE.search(done.errors):
                msg = f"Slurm cannot be asked: {_words(done)}"
                raise BackendUnavailableError(msg)
        except BackendUnavailableError:
            self._steps.note_outage()
            raise
        return done


def _program(name: str) -> str:
    """Path of one of Slurm's programs."""
    found = shutil.which(name)
    if found is None:
        msg = f"there is no {name} on PATH: jobs can be no steps here, set FIBER_SLURM_BY=sbatch"
        raise SubmitError(msg)
    return found


def _environment(conf: str | None) -> Mapping[str, str]:
    """Environment of Slurm's commands, which sbatch hands on to jobs."""
    import pwd

    environ = {name: os.environ[name] for name in os.environ if _OF_SLURM.match(name)}
    entry = pwd.getpwuid(os.getuid())
    environ.update(
        HOME=entry.pw_dir,
        LOGNAME=entry.pw_name,
        USER=entry.pw_name,
        SHELL=entry.pw_shell or "/bin/sh",
        PATH="/usr/local/bin:/usr/bin:/bin",
    )
    if conf is not None:
        environ["SLURM_CONF"] = conf
    return environ


def _words(done: Done) -> str:
    """Message of a command, without the names of its own functions."""
    lines = [re.sub(r"^\w+: (error: )?", "", line) for line in done.errors.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or f"exit code {done.code}"


def _all_gone(done: Done) -> bool:
    return all(_GONE.search(line) for line in done.errors.splitlines() if line.strip())


_LIMITING = re.compile(r"^TaskPlugin\s*=.*task/cgroup", re.MULTILINE)
_TRACKING = re.compile(r"^ProctrackType\s*=\s*proctrack/cgroup", re.MULTILINE)


def run_checks(system: SlurmSystem, config: SlurmConfig) -> Iterator[Check]:
    """Check that Slurm answers, that there are nodes, and what it enforces."""
    try:
        settings = system.settings()
    except BackendError as error:
        fix = "run on a machine where `scontrol ping` says that the controller is up"
        yield Check(name="slurmctld", ok=False, detail=str(error), fix=fix)
        return
    version = re.search(r"^SLURM_VERSION\s*=\s*(\S+)", settings, re.MULTILINE)
    yield Check(name="slurmctld", ok=True, detail=f"Slurm {version[1] if version else ''}".strip())
    try:
        job = system.allocation()
    except BackendError as error:
        fix = "run within salloc or a job script, or set FIBER_SLURM_BY=sbatch"
        yield Check(name="jobs", ok=False, detail=str(error), fix=fix)
        return
    detail = "batch jobs" if job is None else f"steps of the allocation {job}"
    yield Check(name="jobs", ok=True, detail=detail)
    yield _check_nodes(system, config, job)
    if _TRACKING.search(settings):
        yield Check(name="ends of jobs", ok=True, detail="by control groups")
    else:
        detail = "Slurm does not find processes that leave their session"
        fix = "ask for ProctrackType=proctrack/cgroup"
        yield Check(name="ends of jobs", ok=False, detail=detail, fix=fix)
    if _LIMITING.search(settings):
        yield Check(name="limits", ok=True, detail="task/cgroup; whether memory, by cgroup.conf")
    else:
        yield Check(
            name="limits",
            ok=False,
            detail="no limit of memory is enforced",
            fix="ask for TaskPlugin=task/cgroup and ConstrainRAMSpace=yes",
            missing=("memory_limit",),
        )


def _check_nodes(system: SlurmSystem, config: SlurmConfig, job: str | None) -> Check:
    where = f"partition {config.partition}" if config.partition else "the cluster"
    if job is not None:
        where = f"the allocation {job}"
    try:
        capacity = system.capacity()
    except BackendError as error:
        return Check(name="nodes", ok=False, detail=str(error), fix="see what sinfo says")
    if not capacity.cpus:
        fix = "see what sinfo says, and set FIBER_SLURM_PARTITION to a partition with nodes"
        return Check(name="nodes", ok=False, detail=f"no node of {where} is up", fix=fix)
    detail = f"{capacity.cpus:g} CPUs and {capacity.memory} MB of memory in {where}"
    return Check(name="nodes", ok=True, detail=detail)
