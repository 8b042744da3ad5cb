"""Rings whose members' hosts, here containers, are killed at random moments: none hangs."""

import contextlib
import json
import time

import pytest
from docker.errors import APIError, NotFound

import soak
from running import Program

#: seconds within which a ring has ended, whatever became of its hosts
BOUND = 90.0
PROGRAM = """
import json, sys, time
import fiber
from fiber.experimental import Ring, RingError, current_ring

def step(rank, size):
    ring = current_ring()
    for done in range(ring.step, 30):
        time.sleep(0.05)
        ring.commit(done, step=done + 1)
    return ring.step

if __name__ == "__main__":
    for line in sys.stdin:
        options = json.loads(line)
        ring = Ring(options.pop("members"), step, heartbeat=5.0, start_timeout=30.0, **options)
        print("begun", flush=True)
        try:
            told = {"results": ring.run()}
        except RingError as error:
            told = {"reason": error.failure.reason, "text": str(error)}
        status = ring.status()
        conditions = [c.kind.value for c in status.conditions if c.is_true]
        told |= {"restarts": status.restarts, "conditions": conditions}
        print(json.dumps(told), flush=True)
"""


@pytest.fixture
def program(engine, tmp_path):
    (tmp_path / "rings.py").write_text(PROGRAM)
    with contextlib.closing(Program(tmp_path, "rings.py", environ=engine.environ())) as running:
        yield running
        running.end()


def kill_one(engine, chance):
    """Kill a container by its engine; whether there was one."""
    found = engine.listed("fiber.run", status="running")
    if not found:
        return False
    # it may end by itself just now
    with contextlib.closing(engine.docker()) as client, contextlib.suppress(NotFound, APIError):
        client.api.kill(chance.choice(sorted(one["Id"] for one in found)))
    return True


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 300)
def test_a_ring_whose_hosts_die_at_random_moments_ends_as_it_should(engine, program):
    for current in soak.rounds("hosts of members killed", 100, least=2):
        chance = current.rng
        restarts, size = chance.randrange(3), chance.randint(2, 3)
        asked = {"members": size, "max_restarts": restarts, "backoff_limit": 3}
        program.tell(json.dumps(asked))
        assert program.line() == "begun"
        began, killed = time.monotonic(), 0
        for _ in range(restarts + chance.randrange(2)):
            # the moment is random, not waited for: faults come when they come
            time.sleep(chance.uniform(0.1, 2.0))
            killed += kill_one(engine, chance)

        report = json.loads(program.line())

        assert time.monotonic() - began < BOUND
        if "results" in report:
            assert report["results"] == [30] * size
            assert "Succeeded" in report["conditions"]
        else:
            # never without a word
            assert report["reason"]
            assert "Failed" in report["conditions"]
            assert killed > 0
        assert report["restarts"] <= min(restarts, killed)
        assert engine.left(BOUND) == []
        current.note(killed=killed, restarts=report["restarts"], succeeded="results" in report)
