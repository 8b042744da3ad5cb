"""Programs that wait in their midst, for their sockets to be looked at: ``listening.py WHAT FOLDER``.

Nothing is imported that some of them have not: ranks of MPI are of a Python without Fiber.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path


def wait(folder, *_):
    # whole, as print's lines are not; the pipe then ends for all that wait together
    os.write(1, b"up\n")
    (folder / "go").read_text()


def train(folder, *_):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    wait(folder)
    dist.destroy_process_group()


def launch(folder, *_):
    command = [sys.executable, "-m", "torch.distributed.run", __file__, "train", str(folder)]
    subprocess.run(command, check=True)


#: what members of rings do
RINGS = {"torch": train, "torchrun": launch, "jax": wait, "horovod": wait}


def main(what, folder):
    if what == "mpi":
        from mpi4py import MPI

        MPI.COMM_WORLD.barrier()
        return wait(folder)
    import fiber
    from fiber import connection, experimental, managers

    if what in RINGS:
        framework = what.removesuffix("run")
        experimental.Ring(2, partial(RINGS[what], folder), framework=framework).run()
    elif what == "pool":
        with fiber.Pool(2) as pool:
            pool.map(wait, [folder] * 2, chunksize=1)
    elif what == "objects":
        with fiber.Manager():
            wait(folder)
    else:
        at, key = str(folder / "path"), b"of two programs"
        manager = managers.SyncManager(("127.0.0.1", 0), authkey=key)
        one, other = (connection.Listener(place, authkey=key) for place in (("0.0.0.0", 0), at))
        with manager, one, other:
            wait(folder)


if __name__ == "__main__":
    train(Path(sys.argv[2])) if sys.argv[1] == "train" else main(sys.argv[1], Path(sys.argv[2]))
