"""The gate, which every change must pass, and the whole, which ``--all`` runs; from a fresh clone.

The gate is what depends on the files that differ from the last commit at which the whole passed (see
``changes.py``), and always: the README's test command, the core on the main Python, what follows the
standard library on an old and a new one, one file of scenarios for each engine, style, types,
documentation, wheels and examples. On engines, other Pythons, for other users, with other libraries,
frameworks and MPIs, and of what the README's command leaves out but is not about the checkout, it
runs half of the tests, another half at each commit: most of what these cost is processes, containers,
hosts and batch jobs which start and end. The whole is every test everywhere; it is run before an
issue is closed, and its success is written into ``.ci/green``.

Stages run side by side in lanes. Every stage runs; any failure fails. A test that failed and passes
alone is named in the last lines: it is a defect, and the whole has not passed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from changes import GREEN, Changes
from stages import Lanes, Running, Stage
from workshop import PUBLIC_PATH, ROOT, UV_PATH, VERSIONS, Workshop

LOGS = ROOT / ".ci" / "logs"
#: for all of it, before nobody waits for it any longer
MINUTES = 85
#: of tests, listed at the end
SLOWEST = 20
#: what tests may not skip here; see tests/support/require.py
REQUIRED = "chromium,docker,gcc,gymnasium,joblib,matplotlib,numpy,opentelemetry,prometheus_client,registry,slurm,ssh,starlette,uvicorn"
#: of the core's tests those that engines run; all of them on both is tox -e py311-docker,py311-ssh
OF_CORE = (
    "fiber_core/tests/test_process.py",
    "fiber_core/tests/test_queues.py",
    "fiber_core/tests/test_synchronize.py",
    "fiber_core/tests/managers/test_base.py",
    "tests/end_to_end/test_killed_ends.py",
)
#: tests of objects that are the kernel's on one host, and messages between hosts
OF_OBJECTS = (
    "fiber_core/tests/test_connection.py",
    "fiber_core/tests/test_queues.py",
    "fiber_core/tests/test_sharedctypes.py",
    "fiber_core/tests/test_synchronize.py",
    "tests/end_to_end/test_killed_ends.py",
    "tests/end_to_end/test_killed_holders.py",
)
#: processes of the stages that compute: another lane's run beside them
AT_ONCE = ("-n", "3")
#: and of the longest stage, which no other one may have to wait for in the end
AT_ONCE_IN_LONGEST = ("-n", "5")
K8S = "plugins/fiber_k8s/tests"
#: all tests run it for what their environment has; stages with a framework or MPI run the others
WHO_CAN_DO_WHAT = "tests/end_to_end/test_who_can_do_what.py"
#: variables of an ordinary machine, and what pip and uv may need to reach an index; nothing else may decide
#: whether tests pass, as PYTHONUNBUFFERED did
BARE = {"CI", "HOME", "PATH", *(f"{name}_proxy" for name in ("http", "https", "no"))}
BARE |= {name for name in os.environ if name.startswith(("PIP_", "UV_"))} | {
    n.upper() for n in BARE
}
BARE |= {"UV_FIND_LINKS", "UV_SYSTEM_CERTS"}
#: tests of what root may do and others may not: limits, folders, signals, engines
BY_USERS = (
    "fiber_core/tests/cli",
    "fiber_core/tests/_agent/supervisor",
    "fiber_core/tests/test_process_interrupts.py",
    "plugins/fiber_local/tests",
    "tests/end_to_end/test_dead_masters.py",
    "tests/end_to_end/test_main_module.py",
    "tests/end_to_end/test_two_programs.py",
)
#: sources of the core, and paths on which checks depend: the gate runs them where one has changed
CORE = "fiber_core/src/fiber"
OF_EVERY = (".ci/", "conftest.py", "fiber_core/pyproject.toml", "pyproject.toml", "tox.ini")
OF_BACKENDS = (
    f"{CORE}/abc.py",
    f"{CORE}/backend_parts",
    f"{CORE}/testing/kit",
    "tests/support/rootfs.py",
)
OF_DOCKER = ("plugins/fiber_docker", "tests/support/dockerd.py", *OF_BACKENDS)
#: what runs on a host without Fiber, too
OF_AGENTS = (f"{CORE}/_agent/supervisor", f"{CORE}/_base/threads.py", f"{CORE}/_tunnel")
OF_SSH = ("plugins/fiber_ssh", "tests/support/ssh_", *OF_AGENTS, *OF_BACKENDS)
OF_SLURM = ("plugins/fiber_slurm", "tests/support/slurm_cluster.py", *OF_BACKENDS)
OF_K8S = ("plugins/fiber_k8s", "tests/support/cluster", "tests/support/k8s_", *OF_BACKENDS)
OF_REMOTE_JOBS = (f"{CORE}/_agent/job", f"{CORE}/_launch", f"{CORE}/_tunnel", f"{CORE}/_wire")
OF_MESSAGES = (
    f"{CORE}/_objects",
    *(f"{CORE}/{name}.py" for name in ("connection", "queues", "sharedctypes", "synchronize")),
)
OF_MPI = (f"{CORE}/_ring/mpi", f"{CORE}/cli/mpirun.py", "tests/support/mpi_stacks.py")
OF_FRAMEWORKS = (f"{CORE}/_ring", f"{CORE}/_objects/memory", f"{CORE}/_agent/resources")
OF_LIBRARIES = (
    "tests/libraries",
    *(f"{CORE}/{name}.py" for name in ("context", "executor", "joblib", "pool", "results")),
)
OF_USERS = (
    "bootstrap.py",
    "plugins/fiber_local",
    "tests/support/hygiene.py",
    f"{CORE}/_agent/supervisor",
    f"{CORE}/cli",
)
LIBRARIES = (
    "deap,dynesty,emcee,gymnasium,joblib,mpire,nevergrad,numpy,p_tqdm,pebble,pymoo,schwimmbad,scipy,"
    "sklearn,tqdm"
)


@dataclasses.dataclass(frozen=True)
class Check:
    """What one stage shows, and what it depends on.

    One that takes ``half`` is given the commit by which the gate chooses half of its tests.
    """

    name: str
    #: with all of its tests
    whole: Callable[..., object] | None
    #: in the gate, whatever has changed; None: nothing
    brief: Callable[..., object] | None = None
    #: beginnings of paths whose change has it run in the gate, too
    paths: tuple[str, ...] = ()
    minutes: float = 35

    def stage(self, shop: Workshop, changes: Changes | None) -> Stage | None:
        """Return what is to be run; with no changes given, all that there is."""
        touched = changes is None or (self.paths and changes.touch((*self.paths, *OF_EVERY)))
        do = self.whole if touched and self.whole else self.brief
        if do is None:
            return None
        options, of_it = {}, [] if do is self.whole else ["brief"]
        if changes is not None and "half" in inspect.signature(do).parameters:
            options["half"] = changes.head
            of_it.append("half")
        name = f"{self.name} ({', '.join(of_it)})" if of_it else self.name
        return Stage(name, functools.partial(do, shop, **options), self.minutes)


def lanes(shop: Workshop, changes: Changes | None) -> list[list[Stage]]:
    """Stages to run beside each other, of which most wait for half their time."""
    first, last = min(shop.pythons, key=_number), max(shop.pythons, key=_number)
    pythons = []
    for version in shop.pythons:
        if version != shop.main:
            all_of_it = functools.partial(other_python, version=version)
            brief = functools.partial(followers, version=version)
            check = Check(
                f"Python {version}", all_of_it, brief if version in {first, last} else None
            )
            pythons.append(check)
    checks = [
        [Check("all tests (README)", all_tests, all_tests, minutes=45)],
        [
            *pythons,
            Check("examples", examples, examples_brief, OF_FRAMEWORKS),
            Check("Python 3.14", python314),
            Check("objects by messages", by_messages, None, OF_MESSAGES),
            Check("fuzz", fuzz),
        ],
        [
            Check("docker", docker, docker_brief, OF_DOCKER),
            Check("k8s on containers", k8s_on_containers, k8s_brief, OF_K8S),
            Check("an ordinary user (README)", ordinary_user, None, OF_USERS),
            Check("style, types, docs", static, static),
            Check("core on docker", core_on_docker, None, OF_REMOTE_JOBS),
            Check("a newcomer (README)", newcomer),
        ],
        [
            Check("libraries", libraries, None, OF_LIBRARIES),
            Check("ssh", ssh, ssh_brief, OF_SSH),
            Check("k8s", k8s, k8s, OF_K8S),
            Check("core on ssh", core_on_ssh, None, OF_REMOTE_JOBS),
            Check("wheels", wheels, wheels),
        ],
        [
            # one after the other, as each has clusters
            Check("slurm", slurm, slurm_brief, OF_SLURM),
            Check("core on slurm", core_on_slurm, None, (*OF_REMOTE_JOBS, *OF_SLURM)),
            Check("mpi", mpi, None, OF_MPI),
        ],
    ]
    return [[it for check in lane if (it := check.stage(shop, changes))] for lane in checks]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def all_tests(shop: Workshop, it: Running, half: str = "") -> None:
    """The README's command whole, then the other tests, with nothing else in the environment."""
    python = shop.pythons[shop.main]
    # in the whole pip installs for an ordinary user and a newcomer, in ten times the time
    environ = {"FIBER_REQUIRE": REQUIRED, "PATH": f"{UV_PATH}{os.pathsep}{os.environ['PATH']}"}
    # one process rewrites the tests' asserts, which takes 10 s, not each worker
    it.run(
        python, "bootstrap.py", "test", "-qq", "-n", "0", "--collect-only", keeps=BARE, **environ
    )
    for which in ((), ("--part", "rest", f"--half={half}")):
        words = ("bootstrap.py", "test", *which, "-q", *AT_ONCE_IN_LONGEST)
        it.tests(python, *words, keeps=BARE, **environ)


def ordinary_user(shop: Workshop, it: Running, half: str = "") -> None:
    """Some tests by the same command, in a clone of somebody who is not root."""
    user = shop.user(it)
    if user is None:
        it.say("only root can be another user, and there has to be a Python that others may run")
        return
    # which makes distributions and runs the kit on them, whoever does
    but = "--ignore=fiber_core/tests/cli/test_plugin.py"
    words = (*user.python, user.clone / "bootstrap.py", "test", "-q", "-n", "2", but, *BY_USERS)
    words += (f"--half={half}",)
    # a folder of PATH that one may not enter changes what the system says of a missing program
    environ = {"HOME": str(user.home), "PATH": PUBLIC_PATH}
    if half:
        # the whole installs by pip, which takes 35 s of processor time more
        environ["PATH"] = f"{user.programs}{os.pathsep}{PUBLIC_PATH}"
    it.tests(*words, keeps=BARE, cache=user.home / "cache", **environ)


def newcomer(shop: Workshop, it: Running) -> None:
    """README's commands, its program and some mistakes, on a bare Debian, as root and as a user."""
    it.run(shop.pythons[shop.main], ".ci/newcomer.py")


def other_python(shop: Workshop, it: Running, version: str) -> None:
    """What depends on the Python; what does not is named at the end of the output."""
    between = min(shop.pythons) < version < max(shop.pythons)
    _on_python(shop, it, version, "between" if between else "python")


def followers(shop: Workshop, it: Running, version: str, half: str = "") -> None:
    """What does as the standard library does, and so may differ from Python to Python."""
    # on two Pythons, other halves
    _on_python(shop, it, version, "followers", f"--half={half and version + half}")


def _on_python(shop: Workshop, it: Running, version: str, part: str, *words: str) -> None:
    # all tests in one session and one environment: they differ in nothing but their folders
    words = ("--part", part, *AT_ONCE, *words, "plugins/fiber_local/tests")
    shop.tox_tests(it, f"py{version.replace('.', '')}-core", *words)


def python314(shop: Workshop, it: Running) -> None:
    """The newest Python, in a root folder of Debian's next suite."""
    words = (".ci/python314.py", "--", "-q", "--part", "python")
    # its folder has no compiler
    it.tests(shop.pythons[shop.main], *words, FIBER_REQUIRE=REQUIRED.replace("gcc,", ""))


def on_engine(shop: Workshop, it: Running, *words: str, half: str = "", **environ: str) -> None:
    """Tests in the environment that all backends are in; half of them, if a seed is given."""
    python = shop.environment(it, f"py{shop.main.replace('.', '')}-docker")
    environ.update(shop.engine(python))
    # the first test's time is also that of an engine and its image
    words = ("-o", "timeout=240", "--durations=5", f"--half={half}", *words)
    it.tests(python, "-m", "pytest", "-q", "-p", "fiber.testing.report", *words, **environ)


def docker_brief(shop: Workshop, it: Running) -> None:
    """The scenarios, in one program."""
    on_engine(shop, it, "plugins/fiber_docker/tests/test_scenarios.py")


def ssh_brief(shop: Workshop, it: Running) -> None:
    """The scenarios, in one program."""
    on_engine(shop, it, "plugins/fiber_ssh/tests/end_to_end/test_scenarios.py")


def slurm_brief(shop: Workshop, it: Running) -> None:
    """The scenarios, in one program."""
    on_engine(shop, it, "plugins/fiber_slurm/tests/end_to_end/test_scenarios.py")


def k8s_brief(shop: Workshop, it: Running) -> None:
    """The scenarios, in one program."""
    on_engine(shop, it, f"{K8S}/end_to_end/test_scenarios.py")


def docker(shop: Workshop, it: Running, half: str = "") -> None:
    """The whole kit, the scenarios and the kills."""
    on_engine(shop, it, "plugins/fiber_docker/tests", half=half)


def ssh(shop: Workshop, it: Running, half: str = "") -> None:
    """The whole kit, the scenarios and the kills."""
    on_engine(shop, it, "-n", "2", "plugins/fiber_ssh/tests", half=half)


def slurm(shop: Workshop, it: Running, half: str = "") -> None:
    """The whole kit, the scenarios and the kills, on two clusters: most tests wait for Slurm."""
    on_engine(shop, it, "-n", "2", "plugins/fiber_slurm/tests", half=half)


def k8s(shop: Workshop, it: Running) -> None:
    """What takes no containers."""
    apart = (f"{K8S}/end_to_end", f"{K8S}/test_conformance.py")
    on_engine(shop, it, "-n", "2", K8S, *(f"--ignore={path}" for path in apart))


def k8s_on_containers(shop: Workshop, it: Running, half: str = "") -> None:
    """Scenarios, kills, drains and rings; the kit, the command and the rest are tox -e py311-k8s."""
    names = ("masters", "scenarios", "kills", "drain", "rings")
    on_engine(shop, it, *(f"{K8S}/end_to_end/test_{name}.py" for name in names), half=half)


def by_messages(shop: Workshop, it: Running, half: str = "") -> None:
    """Objects of one host as they are between hosts: by messages, on Unix sockets and over TLS."""
    # which has what that of the core has, and is there
    python = shop.environment(it, f"py{shop.main.replace('.', '')}-docker")
    words = (python, "-m", "pytest", "-q", "-n", "2", f"--half={half}")
    it.tests(*words, *OF_OBJECTS, FIBER_KERNEL_OBJECTS="false")
    # what is in nng's buffers when a process is killed is lost; what nobody disturbs goes over TLS in
    # the programs of tests/compat
    killed = (path for path in OF_OBJECTS if "killed" in path)
    it.tests(*words, *killed, FIBER_LOCAL_TRANSPORT="tls")


def core_on_docker(shop: Workshop, it: Running, half: str = "") -> None:
    """Some of the core's tests, in containers."""
    files = OF_CORE[0], OF_CORE[-1]
    on_engine(shop, it, "-n", "2", "--fiber-backend", "docker", *files, half=half)


def core_on_slurm(shop: Workshop, it: Running, half: str = "") -> None:
    """Some of the core's tests, as batch jobs, and rings."""
    words = (*OF_CORE, "fiber_core/tests/_ring/test_ring.py")
    on_engine(shop, it, "-n", "2", "--fiber-backend", "slurm", *words, half=half)


def core_on_ssh(shop: Workshop, it: Running, half: str = "") -> None:
    """Some of the core's tests, on three hosts."""
    on_engine(shop, it, "-n", "2", "--fiber-backend", "ssh", *OF_CORE, half=half)


def mpi(shop: Workshop, it: Running, half: str = "") -> None:
    """Each MPI in an environment of its own; Debian's is the system's. Then over each backend."""
    required = f"{REQUIRED},mpi"
    shop.environment(it, "mpi")
    it.run(ROOT / ".tox/mpi-tests/bin/python", "tests/support/mpi_stacks.py")
    shop.tox_tests(it, "mpi", f"--half={half}", FIBER_REQUIRE=required)
    files = ("fiber_docker/tests", "fiber_ssh/tests/end_to_end", "fiber_k8s/tests/end_to_end")
    over = (f"plugins/{folder}/test_mpirun.py" for folder in files)
    each_other = ("-m", "mpi", "-k", "find_each_other")
    on_engine(shop, it, *each_other, *over, half=half, FIBER_REQUIRE=required)
    words = ("--fiber-backend", "slurm", "-m", "mpi", "-k", "find_each_other or lost_member")
    file = "tests/end_to_end/test_mpirun.py"
    on_engine(shop, it, *words, file, half=half, FIBER_REQUIRE=required)
    on_engine(shop, it, "-k", "mpirun", WHO_CAN_DO_WHAT, half=half, FIBER_REQUIRE=required)


def static(shop: Workshop, it: Running) -> None:
    """What is seen without running anything."""
    for name in ("lint", "type", "docs"):
        shop.tox(it, name)


def wheels(shop: Workshop, it: Running) -> None:
    """All distributions, built and installed where there is no checkout."""
    shop.tox_tests(it, "wheels")


def examples(shop: Workshop, it: Running, half: str = "") -> None:
    """Every example as a user runs it, and what takes a framework that can be had."""
    python = shop.environment(it, "examples")
    required = REQUIRED
    if shop.add_torch(it, python):
        required += ",torch"
    if shop.add(it, python, "jax"):
        required += ",jax"
    else:
        it.say("JAX cannot be had: its example is untested")
    if shop.add(it, python, "-e", "plugins/fiber_ssh"):
        required += ",fiber_ssh"
    half = f"--half={half}"
    shop.tox_tests(it, "examples", "-n", "2", half, FIBER_REQUIRE=required)
    files = (
        "fiber_core/tests/_ring/frameworks",
        "fiber_core/tests/_objects/memory/test_tensors.py",
        "fiber_core/tests/_agent/job/test_remote_tensors.py",
    )
    words = (python, "-m", "pytest", "-q", "-n", "2", half)
    it.tests(*words, *files, FIBER_REQUIRE=required)
    it.tests(*words, "-k", "torch or JAX", WHO_CAN_DO_WHAT, FIBER_REQUIRE=required)


def examples_brief(shop: Workshop, it: Running) -> None:
    """Every example that takes no framework, as a user runs it."""
    shop.tox_tests(it, "examples", "-n", "2")


def libraries(shop: Workshop, it: Running, half: str = "") -> None:
    """Libraries that take our pool, context or executor in place of the stdlib's."""
    python = shop.environment(it, "libraries")
    required = f"{REQUIRED},{LIBRARIES}"
    if shop.add_torch(it, python, "stable-baselines3>=2.4"):
        required += ",stable_baselines3,torch"
    shop.tox_tests(it, "libraries", f"--half={half}", FIBER_REQUIRE=required)


def fuzz(shop: Workshop, it: Running) -> None:
    """Every parser that a stranger or a worker feeds, a minute each; all tests read the corpus."""
    shop.tox(it, "fuzz", "--", "--seconds", "60", "--jobs", "2")


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for and sum it up."""
    if unknown := set(arguments) - {"--all"}:
        print(f"usage: .ci/run [--all]; not {' '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    began, worked = time.monotonic(), processor_time()
    os.chdir(ROOT)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    os.environ["FIBER_REQUIRE"] = REQUIRED
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    # else each process compiles anew, and rewriting the tests' asserts takes 20 s of each of pytest's
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    shop = Workshop()
    untested = ", ".join(version for version in VERSIONS if version not in shop.pythons) or "none"
    print(f"Pythons: {', '.join(shop.pythons)}; not here: {untested}", flush=True)
    if not shop.main:
        print(f"no Python of {', '.join(VERSIONS)} is on this machine", file=sys.stderr)
        return 1
    changes = None if "--all" in arguments else Changes(ROOT)
    print("everything (--all)" if changes is None else f"the gate: {changes}", flush=True)
    tools = Lanes([[Stage("programs (apt)", shop.programs), Stage("tox", shop.tools)]], LOGS, 10)
    work = Lanes(lanes(shop, changes), LOGS, MINUTES - 10)
    with contextlib.closing(shop):
        tools.run()
        work.run()
    done = [*tools.done, *work.done]
    print_summary(done, time.monotonic() - began, processor_time() - worked)
    flaky = [name for one in done for name in one.flaky]
    passed = all(one.passed for one in done) and not (changes is None and flaky)
    if passed and changes is None:
        commit = ("git", "rev-parse", "HEAD")
        done_at = subprocess.run(commit, capture_output=True, text=True, check=True).stdout
        (ROOT / GREEN).write_text(done_at, encoding="utf-8")
        print(f"everything passed: commit {GREEN}, from which later gates start")
    return 0 if passed else 1


def processor_time() -> float:
    """Seconds for which this machine's processors have worked since it started."""
    idle = {3, 4}
    ticks = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    worked = sum(int(number) for place, number in enumerate(ticks) if place not in idle)
    return worked / os.sysconf("SC_CLK_TCK")


def print_summary(done: Sequence[Running], seconds: float, worked: float) -> None:
    """Print what each stage came to, the slowest tests, and last the flaky ones."""
    print("\n=== summary")
    for one in done:
        print(f"{one.stage.name:<32} {one.verdict:<12} {one.seconds:5.0f} s {one.cpu:6.0f} CPU s")
    print(f"{'all':<45} {seconds:5.0f} s {sum(one.cpu for one in done):6.0f} CPU s")
    # daemons, and whatever runs in containers and on hosts, is waited for by none of a stage's commands
    there = seconds * (os.cpu_count() or 1)
    print(f"this machine's processors worked {worked:.0f} s of {there:.0f} s")
    results = [(test, one.stage.name) for one in done for test in one.results]
    print(f"\n{len(results)} tests; the slowest:")
    for test, stage in sorted(results, key=lambda each: -each[0].seconds)[:SLOWEST]:
        print(f"{test.seconds:6.1f} s  {test.name} ({stage})")
    flaky = [(name, one.stage.name) for one in done for name in one.flaky]
    if flaky:
        print("\nflaky: failed among others and passed alone. Each is a defect to be mended:")
        for name, stage in flaky:
            print(f"  {name} ({stage})")


def stop(*_: object) -> NoReturn:
    """End as by Ctrl-C, with all that was started; who asks again is not heard."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main(sys.argv[1:]))
