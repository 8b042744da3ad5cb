"""Hosts whose time of day is wrong, or is set while they work, work as others do."""

import contextlib

import pytest

from running import Program
from ssh_hosts import ssh_hosts
from ssh_programs import left_on

HOUR = 3600

PROGRAM = """
import socket
import sys
import time

import fiber


def look(began):
    return socket.gethostname(), round((time.time() - began) / 3600)


if __name__ == "__main__":
    began = time.time()
    with fiber.Pool(2) as pool:
        # one that does not take part is waited for
        for _ in sys.stdin:
            found = set()
            while len(found) < 2:
                found |= set(pool.map(look, [began] * 20, chunksize=1))
            print(*(hours for _, hours in sorted(found)), flush=True)
"""


@pytest.fixture(scope="module")
def world():
    with ssh_hosts("alpha", "beta", clocks=True) as made:
        yield made


@pytest.mark.parametrize("first", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_a_host_whose_clock_is_an_hour_off_takes_part_also_when_it_is_set(world, tmp_path, first):
    beta = world.hosts[1]
    (tmp_path / "look.py").write_text(PROGRAM)
    environ = {**world.environ(slots=1), "FIBER_BACKEND": "ssh"}
    beta.set_clock(first)
    with contextlib.closing(Program(tmp_path, "look.py", environ=environ)) as program:
        for ahead in (first, -first, 0):
            beta.set_clock(ahead)
            program.tell("look")
            assert program.line() == f"0 {ahead // HOUR}"
        program.end()
    assert left_on(world, 20.0) == []
