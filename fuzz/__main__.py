"""``python -m fuzz``: feed targets with inputs that atheris makes up, guided by what code they reach."""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import logging
import os
import re
import resource
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from fuzz.target import CORPUS, TARGETS, load_all

#: seconds that one input may take, and memory in MB that a target may have, all its inputs together
HANG, MEMORY = 30, 1024
#: bytes of the longest input
LONGEST = 4096
#: packages whose branches guide the inputs
_GUIDES = ["fiber", "fiber_k8s", "fiber_ssh", "configparser", "shlex", "tarfile"]
_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_FOUND = re.compile(r"Test unit written to (\S+)")
_ERROR = re.compile(r"Uncaught Python exception: ===\n(.*)|ERROR: libFuzzer: (.*)")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    add = parser.add_argument
    add("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    add("--seconds", type=int, default=60, help="for each target (default: 60)")
    another = secrets.randbelow(2**31 - 1) + 1
    add("--seed", type=int, default=another, help="of the inputs (default: another one each time)")
    add("--jobs", type=int, default=1, help="targets that run at once (default: 1)")
    add("--inside", metavar="MODULE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside and (unknown := set(given.targets) - set(TARGETS)):
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("it needs atheris, which has wheels for CPython 3.11 to 3.13 on Linux")
    given.targets = given.targets or list(TARGETS)
    return given


def fuzz(name: str, seconds: int, seed: int) -> bool:
    """Run a target in a process of its own; True where nothing was found."""
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    module = TARGETS[name].feed.__module__
    words = [name, "--seconds", str(seconds), "--seed", str(seed), "--inside", module]
    began = time.monotonic()
    # in memory where that can be, for targets write thousands of files a second; atheris leaves them
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "fuzz", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": folder},
            text=True,
            errors="replace",
            check=False,
        )
    executions = _EXECUTIONS.search(done.stdout)
    count = executions[1] if executions else "some"
    took = f"{count} executions in {time.monotonic() - began:.0f} s, seed {seed}"
    if done.returncode == 0:
        print(f"{name}: {took}", flush=True)
        return True
    found, error = _FOUND.search(done.stdout), _ERROR.search(done.stdout)
    why = error and (error[1] or error[2])
    where = f"{found[1]}: mend what reads it, and commit it as an example" if found else "not kept"
    why = f"{why}\n{done.stdout[-3000:]}\nthe input is {where}"
    print(f"{name}: FAILED after {took}: {why}", flush=True)
    return False


def inside(module: str, name: str, seconds: int, seed: int) -> None:
    """Be the process of a target of a module."""
    import atheris

    with atheris.instrument_imports(include=_GUIDES):
        importlib.import_module(module)
    logging.disable()
    warnings.simplefilter("ignore")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + MEMORY * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    new = tempfile.mkdtemp()
    options = f"max_total_time={seconds} seed={seed} timeout={HANG} report_slow_units={HANG}"
    options += f" rss_limit_mb={MEMORY} max_len={LONGEST} print_final_stats=1"
    flags = [*(f"-{option}" for option in options.split()), f"-artifact_prefix={CORPUS / name}/"]
    atheris.Setup([sys.argv[0], *flags, new, str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    # the process of a target imports what it needs itself, so that atheris sees its branches
    if "--inside" not in sys.argv:
        load_all()
    given = arguments()
    if given.inside:
        inside(given.inside, given.targets[0], given.seconds, given.seed)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        passed = pool.map(lambda name: fuzz(name, given.seconds, given.seed), given.targets)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
