"""Many rings, and rings whose members are killed at random moments: none hangs."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

import fiber
import soak
from commands import ran
from fiber.experimental import ConditionKind, Ring, RingError, current_ring

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
def test_no_two_rings_ever_meet_on_a_port_one_after_another():
    for current in soak.rounds("rings one after another", 100, least=3):
        ring = Ring(2, hand_round)
        assert ring.run() == expected(ring, 2)
        current.note(members=2)


@pytest.mark.usefixtures("shared_runtime")
def test_no_two_rings_ever_meet_on_a_port_ten_at_once():
    for current in soak.rounds("ten rings at once", 10):
        rings = [Ring(2, hand_round) for _ in range(10)]
        for ring in rings:
            ring.start()
        assert [ring.join(BOUND) for ring in rings] == [expected(ring, 2) for ring in rings]
        current.note(rings=len(rings))


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


def outcome(ring):
    try:
        return ring.join(BOUND), None
    except RingError as error:
        return None, error.failure


@pytest.mark.usefixtures("shared_runtime")
def test_a_ring_whose_members_die_at_random_moments_ends_as_it_should():
    for current in soak.rounds("members killed", 100, least=2):
        chance = random.Random(current.seed)
        restarts, size = chance.randrange(3), chance.randint(2, 3)
        kinds = [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP]
        ring = Ring(
            size,
            step,
            max_restarts=restarts,
            # a member may be killed before all are up, too
            backoff_limit=3,
            heartbeat=HEARTBEAT,
            start_timeout=START_TIMEOUT,
        )
        began = time.monotonic()
        ring.start()
        killed = 0
        while killed < restarts + chance.randrange(2) and time.monotonic() - began < BOUND:
            if ring.wait_for(lambda status: status.phase.is_over, chance.uniform(0.1, 1.5)):
                break
            pids = members_of(ring)
            if not pids:
                continue
            try:
                os.kill(chance.choice(pids), chance.choice(kinds))
            except ProcessLookupError:
                continue
            killed += 1
        results, failure = outcome(ring)
        status = ring.status()
        if failure is None:
            assert results == [30] * size, status
            assert status.has(ConditionKind.SUCCEEDED)
        else:
            # never without a word
            assert failure.reason
            assert status.has(ConditionKind.FAILED)
        assert status.restarts <= min(restarts, killed)
        assert results is not None or killed > 0
        assert members_of(ring) == []
        current.note(killed=killed, restarts=status.restarts, succeeded=results is not None)


@pytest.mark.usefixtures("shared_runtime")
def test_a_live_ring_goes_on_whoever_dies_and_newcomers_know_what_the_others_know():
    for current in soak.rounds("members of live rings killed", 100, least=2):
        chance = random.Random(current.seed)
        ring = Ring(
            3,
            step,
            min=1,
            max=3,
            elastic="live",
            # for the member that the others depend on
            max_restarts=2,
            backoff_limit=3,
            heartbeat=HEARTBEAT,
            start_timeout=START_TIMEOUT,
        )
        ring.start()
        killed = 0
        for _ in range(chance.randint(1, 3)):
            if ring.wait_for(lambda status: status.phase.is_over, chance.uniform(0.1, 1.5)):
                break
            pids = members_of(ring)
            if not pids:
                continue
            kind = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            try:
                os.kill(chance.choice(pids), kind)
            except ProcessLookupError:
                continue
            killed += 1
        results, failure = outcome(ring)
        status = ring.status()
        if failure is None:
            assert results == [30] * len(results), status
            assert 1 <= len(results) <= 3
        else:
            # never without a word
            assert failure.reason
            assert killed > 0
        assert status.restarts <= min(2, killed)
        assert members_of(ring) == []
        current.note(
            killed=killed,
            restarts=status.restarts,
            changes=status.changes,
            succeeded=failure is None,
        )


def test_a_program_that_ends_waits_for_its_ring(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import time\n"
        "from fiber.experimental import Ring\n"
        "def member(rank, size):\n"
        "    time.sleep(1)\n"
        "    print(f'done {rank}', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    Ring(2, member).start()\n"
    )

    done = ran([sys.executable, script])

    assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", "done 0", "done 1"])


def test_ctrl_c_ends_a_ring_and_its_program(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import time\n"
        "from fiber.experimental import Ring\n"
        "def member(rank, size):\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    Ring(3, member, max_restarts=3).run()\n"
    )
    with open(tmp_path / "out", "w") as out:
        program = subprocess.Popen([sys.executable, script], stdout=out, stderr=out)
    deadline = time.monotonic() + 60
    while len(psutil.Process(program.pid).children(recursive=True)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)

    assert program.wait(30) != 0
    assert "KeyboardInterrupt" in (tmp_path / "out").read_text()
