"""Real frameworks in real rings: their collectives work, and a restart forms them anew."""

import os
import signal

import pytest

import require
from commands import ran
from fiber.experimental import Ring, current_ring

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def torch():
    require.need_in_jobs("torch")


def reduce_in_torch(rank, size):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    mine = torch.full((1000,), float(rank + 1))
    dist.all_reduce(mine)
    return mine[0].item(), dist.get_rank(), dist.get_world_size()


@pytest.mark.parametrize("jobs, slots", [(1, 1), (4, 1), (1, 2)])
def test_torch_reduces_over_all_ranks(torch, jobs, slots):
    size = jobs * slots
    total = float(sum(range(1, size + 1)))

    found = Ring(jobs, reduce_in_torch, framework="torch", slots=slots).run()

    assert found == [(total, rank, size) for rank in range(size)]


def test_a_dead_rank_starts_all_of_torch_again_where_a_survivor_was(torch):
    def func(rank, size):
        import torch
        import torch.distributed as dist

        ring = current_ring()
        dist.init_process_group("gloo")
        # members that begin again get it from those that did not
        done, total = ring.state or (0, 0.0)
        while done < 6:
            mine = torch.ones(1)
            dist.all_reduce(mine)
            done, total = done + 1, total + mine.item()
            ring.commit((done, total), step=done)
            if done == 3 and rank == 1 and ring.restarts == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return total, ring.restarts

    assert Ring(2, func, framework="torch", max_restarts=2).run() == [(12.0, 1)] * 2


def test_jax_gathers_from_all_members_and_listens_to_no_network():
    require.need_in_jobs("jax")

    def func(rank, size):
        import jax
        import psutil
        from jax.experimental import multihost_utils

        found = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
        listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"]
        return jax.process_count(), found.ravel().tolist(), {"0.0.0.0", "::"} & {*listening}

    assert Ring(2, func, framework="jax").run() == [(2, [0, 1], set())] * 2


def test_a_bare_torchrun_in_each_member_forms_one_job(torch):
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
        "x = torch.ones(1) * (dist.get_rank() + 1); dist.all_reduce(x); "
        "print('sum', x.item(), dist.get_world_size(), 'rank', dist.get_rank()); "
        "dist.destroy_process_group()"
    )

    def func(rank, size):
        import sys

        command = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
        done = ran([*command, sys.executable, "-c", code])
        return done.returncode, done.stdout.split(), done.stderr[-2000:] * (done.returncode != 0)

    found = Ring(2, func, framework="torch").run()

    words = "sum 3.0 2 rank {}"
    assert [one[:2] for one in found] == [(0, words.format(i).split()) for i in range(2)], found
