"""An elastic torchrun in a live ring keeps its steps while members come and go."""

import itertools
import os
import signal
import sys

import pytest

import fiber
import require
from commands import ran
from fiber.experimental import Ring
from waiting import until

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(400)]

#: what torchrun runs: all ranks count steps together, from where the newest checkpoint is
TRAIN = """
import datetime, os, sys, time
import torch, torch.distributed as dist

folder = sys.argv[1]
checkpoint, steps, enough = (os.path.join(folder, x) for x in ("checkpoint", "steps", "enough"))
if os.environ["MEMBER"] == "2" and os.path.exists(os.path.join(folder, "stuck")):
    os.remove(os.path.join(folder, "stuck"))
    time.sleep(1000)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
rank, size = dist.get_rank(), dist.get_world_size()
step = torch.zeros(1)
if rank == 0 and os.path.exists(checkpoint):
    step = torch.load(checkpoint)
dist.broadcast(step, 0)
last = torch.zeros(1)
while not last.item():
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == size
    step += 1
    if rank == 0:
        with open(steps, "a") as file:
            file.write(f"{int(step.item())} {size}\\n")
        torch.save(step, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
        last[0] = os.path.exists(enough)
    time.sleep(0.05)
    dist.broadcast(last, 0)
dist.destroy_process_group()
"""


def torchrun(rank, size, folder, queue):
    queue.put((rank, os.getpid()))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    done = ran([*command, f"{folder}/train.py", folder], env={**os.environ, "MEMBER": str(rank)})
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return os.environ["PET_NNODES"]


class Steps:
    """The steps that were made with the number of ranks, in the order of their writing."""

    def __init__(self, folder):
        self.path = folder / "steps"

    def read(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def until(self, test):
        """Wait until the output meets a condition."""
        # another program's file has no event here
        until(lambda: test(self.read()), timeout=150)


@pytest.fixture
def steps(tmp_path):
    require.need_module("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    return Steps(tmp_path)


def test_torchrun_keeps_its_steps_while_members_come_and_go(tmp_path, steps):
    folder, queue, stuck = str(tmp_path), fiber.SimpleQueue(), tmp_path / "stuck"
    ring = Ring(
        3,
        lambda rank, size: torchrun(rank, size, folder, queue),
        framework="torch",
        elastic="live",
        min=2,
        max=3,
    )
    ring.start()
    pids = dict(queue.get() for _ in range(3))
    steps.until(lambda read: read and read[-1][1] == 3)

    os.kill(pids[1], signal.SIGKILL)
    queue.get()  # who comes in its place
    number = len(steps.read())
    # once those that were on their way are made, by all of them
    steps.until(lambda read: len(read) > number + 20 and read[-1][1] == 3)
    ring.resize(2)
    steps.until(lambda read: read[-1][1] == 2)
    stuck.touch()
    ring.resize(3)
    # the newcomer's rank has begun, and never meets the others, who go on when it leaves
    steps.until(lambda _: not stuck.exists())
    number = len(steps.read())
    ring.resize(2)
    steps.until(lambda read: len(read) > number + 5 and read[-1][1] == 2)
    ring.resize(3)
    steps.until(lambda read: read[-1][1] == 3)
    (tmp_path / "enough").touch()

    assert ring.join() == ["2:3"] * 3
    made = steps.read()
    sizes = [size for size, _ in itertools.groupby(size for _, size in made)]
    assert sizes[-3:] == [3, 2, 3]
    # a step that was made and not kept is made again; none is left out
    assert all(step[0] <= before[0] + 1 for before, step in itertools.pairwise(made))
    assert ring.status().restarts == 0
