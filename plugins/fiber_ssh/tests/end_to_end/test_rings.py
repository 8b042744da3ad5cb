"""Rings over real hosts: ranks and addresses, pairs that cannot reach each other, lost links."""

import contextlib
import json
import re
import time

import pytest

import require
from running import Program
from ssh_programs import LEASE, left_on
from waiting import until

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import json, sys, time
from fiber.experimental import Ring, RingError, current_ring

def reduce(rank, size):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    mine = torch.full((10,), float(rank + 1))
    dist.all_reduce(mine)
    return mine[0].item()

def wait(rank, size):
    open(sys.argv[2] + f"/up{rank}", "w").close()
    time.sleep(600)

def once(rank, size):
    if current_ring().restarts == 0:
        wait(rank, size)
    return current_ring().me.host

if __name__ == "__main__":
    what, folder, *more = sys.argv[1:]
    options = json.loads(more[0]) if more else {}
    ring = Ring(options.pop("members", 3), globals()[what], **options)
    began = time.monotonic()
    try:
        found = {"results": ring.run()}
    except RingError as error:
        found = {"reason": error.failure.reason, "text": str(error), "host": error.failure.host}
    print(json.dumps({**found, "seconds": time.monotonic() - began}))
"""


@pytest.fixture
def start(world, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {**world.environ(slots=2), "FIBER_BACKEND": "ssh", "FIBER_LEASE": str(LEASE)}
    with contextlib.ExitStack() as stack:

        def begin(what, **options):
            words = ("program.py", what, str(tmp_path), json.dumps(options))
            program = Program(tmp_path, *words, environ=environ)
            stack.callback(program.close)
            # one that has reported ends by itself, and removes what is its run's
            stack.callback(until, lambda: program.process.poll() is not None)
            return program

        yield begin


def report(program):
    return json.loads(program.line())


def all_up(folder):
    # other hosts, same files: nothing tells when they are made
    until(lambda: len(list(folder.glob("up*"))) == 3)


def test_torch_reduces_over_three_hosts(world, start):
    require.need_module("torch")

    assert report(start("reduce", framework="torch"))["results"] == [6.0, 6.0, 6.0]


def test_a_pair_that_cannot_reach_each_other_is_named_before_user_code_runs(world, start, tmp_path):
    _, beta, gamma = world.hosts
    beta.refuse_outgoing(to=gamma.address)
    try:
        found = report(start("wait"))
    finally:
        beta.allow_outgoing()

    assert found["reason"] == "Unreachable"
    assert "(beta) cannot reach" in found["text"]
    assert "(gamma) at port" in found["text"]
    assert f"{gamma.address}: Connection refused" in found["text"]
    assert list(tmp_path.glob("up*")) == []
    assert left_on(world, LEASE + 10) == []


def test_where_slots_suffice_for_some_members_only_none_runs(world, start, tmp_path):
    # two on each of three hosts
    found = report(start("wait", members=7, start_timeout=8.0))

    assert found["reason"] == "StartTimeout"
    # six have room, and as many came up as a busy machine had time for
    words = "[0-6] of 7 members came up within 8 s, so none was run; missing: "
    assert re.search(words, found["text"])
    assert list(tmp_path.glob("up*")) == []
    assert left_on(world, LEASE + 10) == []


def test_a_host_whose_link_is_cut_fails_the_ring_within_the_lease(world, start, tmp_path):
    _, beta, _ = world.hosts
    program = start("wait")
    all_up(tmp_path)
    cut = time.monotonic()
    beta.cut()
    try:
        found = report(program)
        took = time.monotonic() - cut
    finally:
        beta.restore()

    assert found["reason"] in ("LEASE", "NODE_LOST")
    assert found["host"] == "beta"
    # the lease, the end of the others, and the patience for one that cannot be ended
    assert took < LEASE + 60
    assert left_on(world, LEASE + 10) == []


@pytest.mark.lingers("the host's new sshd is for the tests that follow")
def test_all_start_again_when_a_host_died(world, start, tmp_path):
    program = start("once", max_restarts=1)
    all_up(tmp_path)
    _, _, gamma = world.hosts
    gamma.kill_all()
    gamma.start()

    assert len(report(program)["results"]) == 3
    assert left_on(world, LEASE + 10) == []
