"""An elastic torchrun in a live ring keeps its steps while members come and go."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

import fiber
import require
from fiber.experimental import Ring

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(400)]

#: what torchrun runs: all ranks count steps together, from where the newest checkpoint is
TRAIN = """
import datetime, os, sys, time
import torch, torch.distributed as dist

folder = sys.argv[1]
checkpoint, steps, formed = (os.path.join(folder, x) for x in ("checkpoint", "steps", "formed"))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
with open(formed, "a") as file:
    file.write("2" if size == 2 else "")
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
        torch.save(step, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
        with open(steps, "a") as file:
            file.write(f"{int(step.item())} {size}\\n")
        # both were there twice: at first, and when somebody had come in place of the lost one
        last[0] = len(open(formed).read()) >= 4
    time.sleep(0.05)
    dist.broadcast(last, 0)
dist.destroy_process_group()
"""


def torchrun(rank, size, folder, queue):
    queue.put((rank, os.getpid()))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    done = subprocess.run(
        [*command, f"{folder}/train.py", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return os.environ["PET_NNODES"]


def sizes(folder):
    """The sizes that steps were made with, in order, each once in a row; and the steps."""
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    found = []
    for _, size in lines:
        if found[-1:] != [int(size)]:
            found.append(int(size))
    return found, [int(step) for step, _ in lines]


def test_torchrun_keeps_its_steps_when_a_member_is_lost_and_another_one_comes(tmp_path):
    require.need_module("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    queue = fiber.SimpleQueue()
    folder = str(tmp_path)
    ring = Ring(
        2,
        lambda rank, size: torchrun(rank, size, folder, queue),
        framework="torch",
        elastic="live",
        min=1,
        max=2,
    )
    ring.start()
    pids = dict(queue.get() for _ in range(2))
    deadline = time.monotonic() + 120
    while not (tmp_path / "steps").exists():
        # another program's file has no event here
        assert time.monotonic() < deadline
        time.sleep(0.1)

    os.kill(pids[1], signal.SIGKILL)

    assert ring.join() == ["1:2"] * 2
    found, steps = sizes(tmp_path)
    assert found in ([2], [2, 1, 2])
    # a step that was made and not kept is made again; none is left out
    assert all(step <= before + 1 for before, step in itertools.pairwise(steps))
    assert ring.status().restarts == 0
    assert ring.status().changes == 2
