#!/usr/bin/env python3
"""A ring allreduce written by hand: every member talks with its two neighbours alone.

    python examples/ring_allreduce.py
    python examples/ring_allreduce.py --members 5 --numbers 1000

Each member has a list of numbers, and wants the sums over all members. The list is cut into as many
pieces as there are members. In the first half (reduce-scatter) each piece travels once around the
ring and grows by every member's part; in the second half (allgather) the finished pieces travel once
around. With N members that are 2(N-1) messages a member, each of one piece: what a member sends does
not grow with the number of members, which is why large models are trained so.
"""

from __future__ import annotations

import argparse
import itertools
import operator
import sys
from typing import Any

import fiber
from fiber.experimental import Ring, RingView

NUMBERS = 12


class Neighbours:
    """The pipes of one member: what it sends goes right, what it gets comes from the left."""

    left: Any = None
    right: Any = None
    sent = 0

    @classmethod
    def meet(cls, ring: RingView, pipes: list[tuple[Any, Any]], numbers: int) -> None:
        """In each member: pipe number i leads from member i to the next one."""
        cls.left = pipes[ring.rank - 1][0]
        cls.right = pipes[ring.rank][1]
        cls.numbers = numbers

    @classmethod
    def exchange(cls, piece: list[float]) -> list[float]:
        """Send a piece to the right, get one from the left."""
        cls.right.send(piece)
        cls.sent += 1
        received: list[float] = cls.left.recv()
        return received


def cut(numbers: list[float], parts: int) -> list[list[float]]:
    edges = [len(numbers) * part // parts for part in range(parts + 1)]
    return [numbers[start:stop] for start, stop in itertools.pairwise(edges)]


def allreduce(numbers: list[float], rank: int, size: int) -> list[float]:
    """The sums over all members, at every member."""
    pieces = cut(numbers, size)
    for step in range(size - 1):
        # one member further left each time: the piece that came is the next one to go
        came = (rank - step - 1) % size
        received = Neighbours.exchange(pieces[(rank - step) % size])
        pieces[came] = list(map(operator.add, pieces[came], received))
    for step in range(size - 1):
        # the piece after mine is complete here, for it came around last
        pieces[(rank - step) % size] = Neighbours.exchange(pieces[(rank - step + 1) % size])
    return [number for piece in pieces for number in piece]


def member(rank: int, size: int) -> tuple[list[float], int]:
    """The sums, and how many messages they took."""
    mine = [float(rank * position) for position in range(Neighbours.numbers)]
    return allreduce(mine, rank, size), Neighbours.sent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--numbers", type=int, default=NUMBERS)
    arguments = parser.parse_args()
    size = arguments.members

    pipes = [fiber.Pipe(duplex=False) for _ in range(size)]
    results = Ring(size, member, Neighbours.meet, (pipes, arguments.numbers)).run()

    expected = [float(sum(range(size)) * position) for position in range(arguments.numbers)]
    for rank, (sums, sent) in enumerate(results):
        verdict = "right" if sums == expected else "WRONG"
        print(f"rank {rank}: the sums are {verdict}, after {sent} messages")
    print(f"2(N-1) = {2 * (size - 1)}")
    return 0 if all(result == (expected, 2 * (size - 1)) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
