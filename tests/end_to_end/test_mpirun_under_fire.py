"""``fiber mpirun`` whose parts are killed at random moments: it ends, and nothing is left."""

import contextlib
import functools
import signal
import subprocess
import sys
import time

import psutil
import pytest

import soak
import waiting
from children import marked
from mpi_stacks import stack
from waiting import PATIENCE

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1200)]

#: seconds within which a run has ended, whatever of it was killed
BOUND = 2 * PATIENCE
#: and all that it started, once it has
GONE = PATIENCE
MPIRUN = {"mpirun", "orterun", "prterun", "mpiexec", "mpiexec.hydra"}
DAEMONS = {"orted", "prted", "prte", "hydra_pmi_proxy"}


def parts(mark, command):
    """What there is to be killed, by what it is: the command, mpirun, its daemons, all others."""
    found = {}
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            name = process.name()
            kind = "mpirun" if name in MPIRUN else "daemon" if name in DAEMONS else "other"
            kind = "command" if process.pid == command.pid else kind
            found.setdefault(kind, []).append(process)
    return found


def kill_one(found, chance):
    """Kill one process of the run; what it was, and how."""
    with contextlib.suppress(IndexError, psutil.NoSuchProcess):
        kind = chance.choice(sorted(found))
        victim = chance.choice(sorted(found[kind], key=lambda process: process.pid))
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        victim.send_signal(number)
        return kind, int(number)
    return "nobody", 0


@pytest.mark.parametrize("name, rounds", [("debian", 100), ("openmpi", 10), ("mpich", 10)])
def test_a_run_ends_whatever_of_it_is_killed(environ, tmp_path, name, rounds):
    mpi, mark = stack(name), environ["TEST_MARK"]
    words = ["-np", "3", "--slots", "2", "--mpirun", mpi.mpirun, "--", "sleep", "2"]
    for current in soak.rounds(f"parts of mpirun killed: {name}", rounds, least=2):
        chance = current.rng
        with open(tmp_path / "out", "w") as out:
            command = subprocess.Popen(
                [sys.executable, "-m", "fiber.cli.main", "mpirun", *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=tmp_path,
            )
        # on a busy machine all moments might be before there is an mpirun: some are after that
        is_late = chance.random() < 0.7
        while is_late and command.poll() is None and "mpirun" not in parts(mark, command):
            time.sleep(0.1)
        # the moment itself is random: faults come when they come
        time.sleep(chance.uniform(0, 2))
        kind, number = kill_one(parts(mark, command), chance)
        began = time.monotonic()
        try:
            code = command.wait(BOUND)
        except subprocess.TimeoutExpired:
            code = None
        took = time.monotonic() - began
        left = waiting.left(functools.partial(marked, mark), GONE)
        told = (tmp_path / "out").read_text()
        still = {process.pid: process.cmdline() for process in left}
        for process in left:
            process.kill()
        assert code is not None, (current.seed, kind, still, told)
        assert still == {}, (current.seed, kind, code, told)
        if kind == "mpirun" and code != 0 and number == signal.SIGKILL:
            # asked to end, it says nothing, and its code is all that is known
            assert told.strip(), (current.seed, code)
        current.note(killed=kind, by=number, code=code, seconds_to_end=round(took, 2))
