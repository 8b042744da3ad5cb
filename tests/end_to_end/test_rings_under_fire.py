"""Many rings, and rings whose members are killed at random moments: none hangs."""

import contextlib
import os
import signal
import socket
import sys
import time

import pytest

import fiber
import soak
from commands import ran
from fiber.experimental import ConditionKind, Ring, RingError, current_ring
from running import Program
from waiting import PATIENCE

pytestmark = [pytest.mark.timeout(1200)]

#: seconds of silence after which these rings give a member up
HEARTBEAT = 3.0
#: and for which those that are being started are waited for: one may be stopped before it is up
START_TIMEOUT = 15.0
#: seconds within which each of them has ended, whatever became of its members
BOUND = 90.0


def hand_round(rank, size):
    """Each member listens at its own port and dials the next one: nobody else may be there."""
    ring = current_ring()
    me, other = ring.me, ring.members[(rank + 1) % size]
    with socket.create_server((me.ip, me.port)) as server:
        deadline = time.monotonic() + 30
        while True:
            try:
                dialling = socket.create_connection((other.ip, other.port), timeout=5)
                break
            except ConnectionRefusedError:
                # it is about to listen, and there is nothing that tells when
                assert time.monotonic() < deadline
                time.sleep(0.01)
        with dialling:
            dialling.sendall(f"{ring.name} {rank}\n".encode())
            server.settimeout(30)
            connection, _ = server.accept()
            with connection, connection.makefile() as stream:
                return stream.readline().split()


def expected(ring, size):
    return [[ring.name, str((rank - 1) % size)] for rank in range(size)]


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize("at_once, full, least", [(1, 100, 3), (10, 10, 1)])
def test_no_two_rings_ever_meet_on_a_port(at_once, full, least):
    for _ in soak.rounds(f"{at_once} rings at once", full, least=least):
        rings = [Ring(2, hand_round) for _ in range(at_once)]
        for ring in rings:
            ring.start()
        assert [ring.join(BOUND) for ring in rings] == [expected(ring, 2) for ring in rings]


def step(rank, size):
    """Commits a step every few milliseconds; done after a second and a half of them."""
    ring = current_ring()
    for done in range(ring.step, 30):
        time.sleep(0.05)
        ring.commit((done, size), step=done + 1)
    return ring.step


def members_of(ring):
    return [
        process.pid
        for process in fiber.active_children()
        if process.name.startswith(ring.name) and process.pid
    ]


#: a member that a live ring loses is not started again, unless the others depend on it
LIVE = {"min": 1, "max": 3, "elastic": "live"}
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP]


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize("is_live", [False, True], ids=["restarted", "live"])
def test_a_ring_whose_members_die_at_random_moments_ends_as_it_should(is_live):
    """Newcomers know what the others know: all have done each step in the end."""
    for current in soak.rounds(f"members killed, live: {is_live}", 100, least=2):
        chance = current.rng
        restarts, size = (2, 3) if is_live else (chance.randrange(3), chance.randint(2, 3))
        ring = Ring(
            size,
            step,
            **(LIVE if is_live else {}),
            max_restarts=restarts,
            # a member may be killed before all are up, too
            backoff_limit=3,
            heartbeat=HEARTBEAT,
            start_timeout=START_TIMEOUT,
        )
        ring.start()
        began, killed, wanted = time.monotonic(), 0, restarts + chance.randrange(2)
        while killed < wanted and time.monotonic() - began < BOUND:
            if ring.wait_for(lambda status: status.phase.is_over, chance.uniform(0.1, 1.5)):
                break
            with contextlib.suppress(IndexError, ProcessLookupError):
                os.kill(chance.choice(members_of(ring)), chance.choice(SIGNALS))
                killed += 1
        try:
            results, failure = ring.join(BOUND), None
        except RingError as error:
            results, failure = [], error.failure
        status = ring.status()
        if failure is None:
            assert results == [30] * len(results), status
            assert len(results) in (range(1, 4) if is_live else [size])
            assert status.has(ConditionKind.SUCCEEDED)
        else:
            # never without a word, or a cause
            assert failure.reason
            assert killed > 0
            assert status.has(ConditionKind.FAILED)
        assert status.restarts <= min(restarts, killed)
        assert members_of(ring) == []
        current.note(killed=killed, restarts=status.restarts, succeeded=failure is None)


PROGRAM = """
import sys, time
from fiber.experimental import Ring

def member(rank, size):
    print(f"up {rank}", flush=True)
    time.sleep(float(sys.argv[2]))
    print(f"done {rank}", flush=True)

if __name__ == "__main__":
    getattr(Ring(2, member, max_restarts=3), sys.argv[1])()
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_that_ends_waits_for_its_ring(program):
    done = ran([sys.executable, program, "start", "1"])

    told = sorted(done.stdout.splitlines())
    assert (done.returncode, told) == (0, ["done 0", "done 1", "up 0", "up 1"])


def test_ctrl_c_ends_a_ring_and_its_program(program, tmp_path, capfd):
    words = [program.name, "run", "600"]
    with contextlib.closing(Program(tmp_path, *words, environ={})) as running:
        assert {running.line() for _ in range(2)} == {"up 0", "up 1"}
        running.process.send_signal(signal.SIGINT)

        assert running.process.wait(PATIENCE) != 0
    assert "KeyboardInterrupt" in capfd.readouterr().err
