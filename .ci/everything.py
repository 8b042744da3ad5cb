"""All that a change must pass, from a fresh clone, as stages in two lanes.

The README's test command, the other Pythons, backends on engines that the tests start, style, types,
documentation, wheels, examples and other people's libraries. Every stage runs; any failure fails.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
import time
from typing import NoReturn

from stages import Lanes, Running, Stage
from workshop import PUBLIC_PATH, ROOT, VERSIONS, Workshop

LOGS = ROOT / ".ci" / "logs"
#: for all of it, before nobody waits for it any longer
MINUTES = 85
#: what tests may not skip here; see tests/support/require.py
REQUIRED = "docker,gymnasium,joblib,matplotlib,numpy,registry,ssh"
#: of the core's tests those that engines run; all of them on both is tox -e py311-docker,py311-ssh
OF_CORE = (
    "fiber_core/tests/test_process.py",
    "fiber_core/tests/test_queues.py",
    "fiber_core/tests/test_synchronize.py",
    "fiber_core/tests/managers/test_base.py",
    "tests/end_to_end/test_killed_ends.py",
)
#: processes of the stages that compute: another lane's run beside them
AT_ONCE = ("-n", "3")
K8S = "plugins/fiber_k8s/tests"
#: variables of an ordinary machine, and what pip may need to reach an index; nothing else may decide
#: whether tests pass, as PYTHONUNBUFFERED did
BARE = {"CI", "HOME", "PATH", *(f"{name}_proxy" for name in ("http", "https", "no"))}
BARE |= {name for name in os.environ if name.startswith("PIP_")} | {n.upper() for n in BARE}
#: tests of what root may do and others may not: limits, folders, signals, engines
OF_USERS = (
    "fiber_core/tests/cli",
    "fiber_core/tests/_agent/supervisor",
    "fiber_core/tests/test_process_interrupts.py",
    "plugins/fiber_local/tests",
    "tests/end_to_end/test_dead_masters.py",
    "tests/end_to_end/test_main_module.py",
    "tests/end_to_end/test_two_programs.py",
)
LIBRARIES = "deap,dynesty,emcee,gymnasium,nevergrad,numpy,pymoo,scipy,sklearn,tqdm"


def stages(shop: Workshop) -> list[list[Stage]]:
    """Stages that mostly compute, and beside them those that mostly wait."""
    main = shop.main
    computing = [Stage(f"tests, Python {main} (README)", functools.partial(readme, shop), 45)]
    for version in shop.pythons:
        if version != main:
            do = functools.partial(other_python, shop, version)
            computing.append(Stage(f"tests, Python {version}", do))
    waiting = {
        f"docker, Python {main}": docker,
        f"ssh, Python {main}": ssh,
        "k8s on containers": k8s_on_containers,
        "core on docker": core_on_docker,
        "core on ssh": core_on_ssh,
        "mpi": mpi,
        "libraries": libraries,
        "examples": examples,
        f"k8s, Python {main}": k8s,
        "wheels": wheels,
        "an ordinary user (README)": ordinary_user,
        "style, types, docs": static,
    }
    return [
        computing,
        [Stage(name, functools.partial(do, shop), 35) for name, do in waiting.items()],
    ]


def readme(shop: Workshop, it: Running) -> None:
    """All tests, by the command that the README names, with nothing else in the environment."""
    words = ("bootstrap.py", "test", "-q", "--durations=25", *AT_ONCE)
    it.tests(shop.pythons[shop.main], *words, keeps=BARE, FIBER_REQUIRE=REQUIRED)


def ordinary_user(shop: Workshop, it: Running) -> None:
    """Some tests by the same command, in a clone of somebody who is not root."""
    user = shop.user(it)
    if user is None:
        it.say("only root can be another user, and there has to be a Python that others may run")
        return
    words = (*user.python, user.clone / "bootstrap.py", "test", "-q", "-n", "2", *OF_USERS)
    # a folder of PATH that one may not enter changes what the system says of a missing program
    environ = {"HOME": str(user.home), "PATH": PUBLIC_PATH}
    it.tests(*words, keeps=BARE, cache=user.home / "cache", **environ)


def other_python(shop: Workshop, version: str, it: Running) -> None:
    """What depends on the Python; what does not is named at the end of the output."""
    factor = f"py{version.replace('.', '')}"
    between = min(shop.pythons) < version < max(shop.pythons)
    which = "--between" if between else "--other-python"
    shop.tox_tests(it, f"{factor}-core", which, *AT_ONCE)
    shop.tox_tests(it, f"{factor}-local", which, *AT_ONCE)


def on_engine(shop: Workshop, it: Running, *words: str, **environ: str) -> None:
    """Tests in the environment that all backends are in."""
    python = shop.environment(it, f"py{shop.main.replace('.', '')}-docker")
    # the first test's time is also that of an engine and its image
    words = ("-o", "timeout=240", "--durations=5", *words)
    it.tests(python, "-m", "pytest", "-q", "-p", "fiber.testing.report", *words, **environ)


def docker(shop: Workshop, it: Running) -> None:
    """The whole kit, the scenarios and the kills."""
    on_engine(shop, it, "plugins/fiber_docker/tests")


def ssh(shop: Workshop, it: Running) -> None:
    """The whole kit, the scenarios and the kills."""
    on_engine(shop, it, "-n", "2", "plugins/fiber_ssh/tests")


def k8s(shop: Workshop, it: Running) -> None:
    """What takes no containers."""
    apart = (f"{K8S}/end_to_end", f"{K8S}/test_conformance.py", f"{K8S}/cluster/test_containers.py")
    on_engine(shop, it, "-n", "2", K8S, *(f"--ignore={path}" for path in apart))


def k8s_on_containers(shop: Workshop, it: Running) -> None:
    """Scenarios, kills, drains and rings; the kit, the command and the rest are tox -e py311-k8s."""
    names = ("masters", "scenarios", "kills", "drain", "rings")
    on_engine(shop, it, *(f"{K8S}/end_to_end/test_{name}.py" for name in names))


def core_on_docker(shop: Workshop, it: Running) -> None:
    """Some of the core's tests, in containers."""
    on_engine(shop, it, "--fiber-backend", "docker", OF_CORE[0], OF_CORE[-1])


def core_on_ssh(shop: Workshop, it: Running) -> None:
    """Some of the core's tests, on three hosts."""
    on_engine(shop, it, "-n", "2", "--fiber-backend", "ssh", *OF_CORE)


def mpi(shop: Workshop, it: Running) -> None:
    """Each MPI in an environment of its own; Debian's is the system's. Then over each backend."""
    required = f"{REQUIRED},mpi"
    shop.environment(it, "mpi")
    it.run(ROOT / ".tox/mpi-tests/bin/python", "tests/support/mpi_stacks.py")
    shop.tox_tests(it, "mpi", FIBER_REQUIRE=required)
    files = ("fiber_docker/tests", "fiber_ssh/tests/end_to_end", "fiber_k8s/tests/end_to_end")
    over = (f"plugins/{folder}/test_mpirun.py" for folder in files)
    on_engine(shop, it, "-m", "mpi", "-k", "find_each_other", *over, FIBER_REQUIRE=required)


def static(shop: Workshop, it: Running) -> None:
    """What is seen without running anything."""
    for name in ("lint", "type", "docs"):
        shop.tox(it, name)
    if "3.10" in shop.pythons:
        shop.tox(it, "type-min")


def wheels(shop: Workshop, it: Running) -> None:
    """All distributions, built and installed where there is no checkout."""
    shop.tox_tests(it, "wheels")


def examples(shop: Workshop, it: Running) -> None:
    """Every example as a user runs it, and what takes a framework that can be had."""
    python = shop.environment(it, "examples")
    required = REQUIRED
    if shop.add_torch(it, python):
        required += ",torch"
    if shop.add(it, python, "jax"):
        required += ",jax"
    else:
        it.say("JAX cannot be had: its example is untested")
    shop.tox_tests(it, "examples", FIBER_REQUIRE=required)
    files = (
        "fiber_core/tests/_ring/frameworks",
        "fiber_core/tests/_objects/memory/test_tensors.py",
        "fiber_core/tests/_agent/job/test_remote_tensors.py",
    )
    it.tests(python, "-m", "pytest", "-q", *files, FIBER_REQUIRE=required)


def libraries(shop: Workshop, it: Running) -> None:
    """Libraries that take our pool, context or executor in place of the stdlib's."""
    python = shop.environment(it, "libraries")
    required = f"{REQUIRED},{LIBRARIES}"
    if shop.add_torch(it, python, "stable-baselines3>=2.4"):
        required += ",stable_baselines3,torch"
    shop.tox_tests(it, "libraries", FIBER_REQUIRE=required)


def main() -> int:
    """Run all stages and sum them up."""
    began = time.monotonic()
    os.chdir(ROOT)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    os.environ["FIBER_REQUIRE"] = REQUIRED
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    # else each process compiles anew, and rewriting the tests' asserts takes 20 s of each of pytest's
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    shop = Workshop()
    untested = ", ".join(version for version in VERSIONS if version not in shop.pythons) or "none"
    print(f"Pythons: {', '.join(shop.pythons)}; not here, so untested: {untested}", flush=True)
    if not shop.main:
        print(f"no Python of {', '.join(VERSIONS)} is on this machine", file=sys.stderr)
        return 1
    tools = Lanes([[Stage("programs (apt)", shop.programs), Stage("tox", shop.tools)]], LOGS, 10)
    lanes = Lanes(stages(shop), LOGS, MINUTES - 10)
    with contextlib.closing(shop):
        tools.run()
        lanes.run()
    done = [*tools.done, *lanes.done]
    passed = all(one.passed for one in done)
    print("\n=== summary")
    for one in done:
        print(f"{one.stage.name:<28} {one.verdict:<12} {one.seconds:5.0f} s {one.cpu:6.0f} CPU s")
    seconds, cpu = time.monotonic() - began, sum(one.cpu for one in done)
    print(f"{'all':<28} {'ok' if passed else 'FAILED':<12} {seconds:5.0f} s {cpu:6.0f} CPU s")
    print(f"untested Pythons: {untested}")
    return 0 if passed else 1


def stop(*_: object) -> NoReturn:
    """End as by Ctrl-C, with all that was started; who asks again is not heard."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main())
