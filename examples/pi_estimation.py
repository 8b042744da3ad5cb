#!/usr/bin/env python3
"""Estimate pi with one million random points, drawn by the workers of a pool."""

import random

import fiber as mp

SAMPLES = 1_000_000


def inside(_: int) -> bool:
    """Draw a point of the unit square; True where it lies in the quarter circle."""
    return random.random() ** 2 + random.random() ** 2 < 1


def main() -> None:
    # workers are forked: without a seed of its own, each would draw the same points
    with mp.Pool(initializer=random.seed) as pool:
        hits = sum(pool.map(inside, range(SAMPLES), chunksize=10_000))
    print(f"pi is about {4 * hits / SAMPLES} after {SAMPLES} samples")


if __name__ == "__main__":
    main()
