"""``fiber mpirun`` with each MPI there is: ranks on members, their results, their failures."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import mpi_ranks
from mpi_stacks import STACKS, stack

pytestmark = [pytest.mark.any_backend, pytest.mark.mpi, pytest.mark.timeout(180)]

PATIENCE = 120
ROOT = Path(__file__).parents[2]
FAILING = """
import os, signal, sys, time
from mpi4py import MPI

world = MPI.COMM_WORLD
if world.rank == 1:
    match sys.argv[1]:
        case "exit":
            os._exit(3)
        case "abort":
            world.Abort(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("rank one is unhappy")
# one that spoke to the other might notice its end before mpirun does, and fail with a code of its own
time.sleep(1000)
"""
LINGERING = """
import os, time
from mpi4py import MPI

os.write(1, f"ready {os.getsid(0)} {os.environ['FIBER_MPI_MEMBER']}\\n".encode())
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _mpi_where_jobs_run():
    if "FIBER_IMAGE" in os.environ:
        pytest.skip("the image has no MPI: the backends' own tests mount one")


@pytest.fixture
def begin(environ, tmp_path):
    """Start ``fiber mpirun``, or another command of ``fiber``."""
    begun = []

    def start(*words, command=("mpirun",)):
        argv = [sys.executable, "-m", "fiber.cli.main", *command, *map(str, words)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(subprocess.Popen(argv, env=environ, cwd=tmp_path, text=True, **pipes))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def mpirun(begin):
    """Run it to its end; its exit code, sorted lines of output, and errors."""

    def run(*words, command=("mpirun",), said=""):
        process = begin(*words, command=command)
        out, err = process.communicate(said, timeout=PATIENCE)
        return process.returncode, sorted(out.splitlines()), err

    return run


def script(folder, text):
    path = folder / "program.py"
    path.write_text(text)
    return path


@pytest.fixture(params=STACKS)
def mpi(request):
    return stack(request.param)


@pytest.fixture
def debian():
    return stack("debian")


@pytest.mark.parametrize(
    "words, members",
    [
        (["-np", 3, "--slots", 2], [0, 0, 1]),
        # the first of them is where mpirun is
        (["--group", "1:slots=2", "--group", "2", "--launcher-is-member"], [0, 0, 1, 2]),
    ],
    ids=["alike", "that differ"],
)
def test_ranks_fill_members_and_find_each_other(mpi, mpirun, tmp_path, words, members):
    program = script(tmp_path, mpi_ranks.PROGRAM)
    total = sum(range(len(members) + 1))

    code, lines, errors = mpirun(*words, "--mpirun", mpi.mpirun, "--", mpi.python, program)

    assert code == 0, errors
    assert lines == [f"rank {n} on member-{member}: {total}" for n, member in enumerate(members)]


@pytest.mark.parametrize(
    "how, code, told",
    [
        ("exit", 3, "rank 1 on member-1 ended with 3"),
        ("kill", 137, "rank 1 on member-1 was killed by SIGKILL"),
        ("abort", 7, ""),
        ("raise", 1, "ValueError: rank one is unhappy"),
    ],
)
def test_a_rank_that_fails_ends_the_run_with_its_code(mpi, mpirun, tmp_path, how, code, told):
    program = script(tmp_path, FAILING)

    found, _, errors = mpirun("-np", 2, "--mpirun", mpi.mpirun, "--", mpi.python, program, how)

    assert found == code, errors
    assert told in errors


def test_options_of_mpiruns_are_passed_on(debian, mpirun, tmp_path):
    code, lines, errors = mpirun(
        *("-np", 2, "--slots", 2, "--members", 2, "--map-by", "node", "-x", "WORD=a b", "--"),
        *("sh", "-c", 'echo "$WORD $FIBER_MPI_MEMBER"'),
    )

    assert (code, lines) == (0, ["a b member-0", "a b member-1"]), errors


@pytest.mark.parametrize("name", ["debian", "openmpi"])
def test_ranks_that_would_run_on_the_launcher_are_an_error_and_begin_nothing(
    name, mpirun, tmp_path
):
    mpi = stack(name)
    code, _, errors = mpirun(
        *("-np", 2, "--mpirun", mpi.mpirun, "--host", "localhost:2", "--"),
        *("touch", tmp_path / "began"),
    )

    assert code != 0
    assert "was started on" in errors
    assert "mpirun did not do as it was told" in errors
    assert not (tmp_path / "began").exists()


def ready(process):
    """The pids of the ranks' daemons' sessions, by member, once both ranks run."""
    found = {}
    while len(found) < 2:
        word, session, member = process.stdout.readline().split()
        assert word == "ready"
        found[member] = int(session)
    return found


def lingering(begin, mpi, tmp_path):
    program = script(tmp_path, LINGERING)
    process = begin("-np", 2, "--mpirun", mpi.mpirun, "--", mpi.python, program)
    return process, ready(process)


def test_a_lost_member_ends_the_run_and_is_named(begin, debian, tmp_path):
    process, sessions = lingering(begin, debian, tmp_path)
    # what a daemon runs in was started by the member's agent
    psutil.Process(sessions["member-1"]).parent().kill()

    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    assert "member-1" in errors


@pytest.mark.parametrize("name", ["debian", "mpich"])
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_it_ends_when_it_is_asked_to_or_killed_and_leaves_nothing(
    begin, name, number, code, tmp_path
):
    process, sessions = lingering(begin, stack(name), tmp_path)
    ranks = [psutil.Process(pid) for pid in sessions.values()]

    process.send_signal(number)

    process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert psutil.wait_procs(ranks, timeout=PATIENCE)[1] == []


def test_standard_input_goes_to_rank_0(debian, mpirun):
    rank = 'if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then cat; fi'

    code, lines, errors = mpirun("-np", 2, "--", "sh", "-c", rank, said="for rank 0\n")

    assert (code, lines) == (0, ["for rank 0"]), errors


# -- jobs of the MPI operators

#: in place of Horovod's own: it asks the script that it is told, as often as that one does
HOROVODRUN = """
while [ "$1" != "--host-discovery-script" ]; do shift; done
for turn in 1 2 3; do "$2" || exit 9; done
"""
DISCOVERY = "/etc/mpi/discover_hosts.sh"


@pytest.fixture
def apply(debian, mpirun, tmp_path):
    """Apply a manifest in the shape of the operator's documentation."""

    def run(launcher, **spec):
        def replicas(container, count):
            return {"replicas": count, "template": {"spec": {"containers": [container]}}}

        worker = {"image": "me/pi", "command": ["/usr/sbin/sshd"], "args": ["-De"]}
        manifest = {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "pi"},
            "spec": {
                "runPolicy": {"cleanPodPolicy": "Running"},
                "mpiReplicaSpecs": {
                    "Launcher": replicas(launcher, 1),
                    "Worker": replicas(worker, 2),
                },
                **spec,
            },
        }
        path = tmp_path / "job.json"
        path.write_text(json.dumps(manifest))
        return mpirun(path, command=("ring", "apply"))

    return run


def test_the_operators_example_of_pi_runs(apply, debian):
    program = [debian.python, str(ROOT / "examples" / "mpi_pi.py")]
    code, lines, errors = apply(
        {
            "image": "me/pi",
            "command": ["mpirun"],
            "args": ["-n", "2", *program],
            "securityContext": {"runAsUser": 1000},
            "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
        },
        slotsPerWorker=1,
        sshAuthMountPath="/home/mpiuser/.ssh",
    )

    assert code == 0, errors
    assert any("pi is 3.14159265359" in line for line in lines), lines
    assert "not supported: spec.mpiReplicaSpecs.Launcher" in errors
    assert ".securityContext" in errors
    assert "image, on this backend" in errors


@pytest.mark.parametrize(
    "command, code, lines",
    [
        (
            ["mpirun", "-n", "2", "sh", "-c", 'echo "$WHO $FIBER_MPI_MEMBER"'],
            0,
            ["me pi-worker-0", "me pi-worker-1"],
        ),
        (["sh", "-c", "mpirun -n 2 sh -c 'echo $WHO'; exit 4"], 4, ["me", "me"]),
        # an elastic launcher finds its script where the manifest says
        (
            ["sh", "-c", HOROVODRUN, "sh", "--max-np", "4", "--host-discovery-script", DISCOVERY],
            0,
            [*["pi-worker-0:1"] * 3, *["pi-worker-1:1"] * 3],
        ),
    ],
    ids=["mpirun", "a script", "an elastic launcher"],
)
def test_a_job_of_the_mpi_operators_runs(apply, command, code, lines):
    launcher = {"command": command, "env": [{"name": "WHO", "value": "me"}]}

    found, said, errors = apply(launcher, slotsPerWorker=1)

    assert (found, said) == (code, lines), errors
