#!/usr/bin/env python3
"""Compute pi by MPI: each rank adds up a part of a series, and a reduction adds the parts.

Run it on jobs of any backend: ``fiber mpirun -np 4 -- python mpi_pi.py``. It needs mpi4py and an MPI.
"""

import math
import socket

from mpi4py import MPI

STEPS = 1_000_000


def part(rank: int, size: int) -> float:
    """What one rank adds to the area under 4 / (1 + x*x), which is pi."""
    width = 1 / STEPS
    return width * sum(4 / (1 + ((n + 0.5) * width) ** 2) for n in range(rank, STEPS, size))


def main() -> None:
    world = MPI.COMM_WORLD
    pi = world.allreduce(part(world.rank, world.size), op=MPI.SUM)
    hosts = world.gather(socket.gethostname())
    if world.rank == 0:
        print(f"{world.size} ranks on {', '.join(sorted(set(hosts)))}")
        print(f"pi is {pi:.12f}, off by {abs(pi - math.pi):.1e}")


if __name__ == "__main__":
    main()
