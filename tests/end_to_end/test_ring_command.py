"""``fiber ring``: a ring of a command, attached to its terminal or detached, to its end."""

import contextlib
import signal

import pytest

from children import marked
from ring_command import RingCommand, check_failed_rank, check_lifecycle, kill_owner
from running import Program
from waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(180)

LASTING = 'echo "up $RANK of $WORLD_SIZE, restarted $FIBER_RING_RESTARTS"; sleep 1000'
UP = {"up 0 of 2, restarted 0", "up 1 of 2, restarted 0"}


@pytest.fixture
def ring(environ):
    return RingCommand(environ)


@pytest.fixture
def lasting(environ, tmp_path):
    """A ring of two that runs, called 'r', and the lines that it writes."""
    words = ["-m", "fiber.cli.main", "ring", "run", "-n", "2", "--name", "r", "sh", "-c", LASTING]
    with contextlib.closing(Program(tmp_path, *words, environ=environ)) as program:
        assert two_lines(program) == UP
        yield program


def two_lines(program):
    return {program.line().split("] ")[1] for _ in range(2)}


def test_a_command_runs_in_every_rank_and_its_code_is_the_rings(ring):
    check_failed_rank(ring)


def test_it_is_suspended_resumed_and_deleted_while_it_runs(ring, lasting):
    assert ring.status()["phase"] == "running"
    assert "a ring 'r' is there already" in ring.ask("run", "-n", "1", "--name", "r", "true").stderr

    ring("suspend", "r")
    ring.until("suspended")
    ring("resume", "r")
    ring.until("running")
    assert two_lines(lasting) == UP

    ring("delete", "r")
    assert lasting.process.wait(PATIENCE) == 1


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_all_ranks_and_it_has_failed(ring, lasting, number, code, tmp_path):
    lasting.process.send_signal(number)

    assert lasting.process.wait(PATIENCE) == code
    until(lambda: not marked(str(tmp_path)))
    assert ring.status()["phase"] == "failed"
    assert "r has ended" in ring.ask("suspend", "r").stderr
    ring("delete", "r")


def test_it_is_looked_after_from_other_shells_until_it_is_deleted(ring, tmp_path):
    def ranks():
        return [p for p in marked(str(tmp_path)) if p.is_running() and p.name() == "sleep"]

    def are_gone():
        until(lambda: not ranks())
        return True

    check_lifecycle(ring, "local", lambda: len(ranks()) == 2, are_gone)


def test_a_rank_that_dies_is_started_again_and_that_is_seen(ring):
    words = ["run", "-d", "-n", "2", "--max-restarts", "1", "--name", "r", "sh", "-c"]
    once = 'echo "restarted $FIBER_RING_RESTARTS"; [ $FIBER_RING_RESTARTS = 1 ] || exit 4'

    ring(*words, once)

    # until it is over
    assert ring("logs", "-f", "r").count("restarted 1") == 2
    assert ring.until("succeeded")["restarts"] == 1
    assert "restart 1 of 1" in ring("describe", "r")
    metrics = ring("status", "--metrics")
    assert "fiber_rings_created_total 1" in metrics
    assert 'fiber_ring_info{name="r",backend="local",phase="succeeded"} 1' in metrics


def test_an_elastic_one_is_resized_and_those_that_are_there_go_on(ring):
    words = ["-n", "2", "--min", "1", "--max", "3", "--elastic", "live", "--name", "r"]
    ring("run", "-d", *words, "sh", "-c", 'echo "began $RANK of $WORLD_SIZE"; sleep 1000')
    ring.until("running")

    assert "cannot have 4 members" in ring.ask("resize", "r", "4").stderr
    ring("resize", "r", "3")
    until(lambda: "began 2 of 3" in ring("logs", "r"))

    assert len(ring("logs", "r").splitlines()) == 3
    assert "MemberJoined" in ring("describe", "r")
    assert ring.status()["changes"] == 1
    ring("delete", "r")


def test_when_its_owner_is_killed_its_members_end_and_it_has_failed(ring, tmp_path):
    assert ring("run", "-d", "-n", "2", "--name", "r", "sh", "-c", LASTING) == "r\n"

    kill_owner(ring, tmp_path / "state")

    until(lambda: not marked(str(tmp_path)))
    assert "r has ended" in ring.ask("suspend", "r").stderr
    ring("delete", "r")


def test_what_cannot_be_started_is_an_error_here_and_leaves_nothing(ring):
    done = ring.ask("run", "-d", "-n", "2", "--name", "r", "--framework", "caffe", "true")

    assert done.returncode != 0
    assert "r was not started: no framework 'caffe'" in done.stderr
    assert ring("status", "--json").strip() == "[]"
    # and its name is free
    ring("run", "-n", "1", "--name", "r", "true")
