#!/usr/bin/env python3
"""Fit a line on several processes at once with JAX.

    python examples/jax_ring.py
    python examples/jax_ring.py --members 3

Every member draws points of its own and computes the gradient on them; the means over all members
are the same everywhere, so all members fit the same line. Needs JAX.
"""

from __future__ import annotations

import argparse
import sys

from fiber.experimental import Ring

try:
    import jax
except ImportError:
    sys.exit("this example needs JAX: python3 -m pip install jax")

SLOPE, OFFSET = 3.0, -1.0
STEPS = 60


def fit(rank: int, size: int) -> tuple[int, float, float]:
    """The number of processes, and the line that all of them found."""
    import jax.numpy as jnp
    from jax.experimental.multihost_utils import process_allgather

    x = jax.random.uniform(jax.random.key(rank), (256,), minval=-1.0, maxval=1.0)
    y = SLOPE * x + OFFSET

    def loss(line: jax.Array) -> jax.Array:
        return jnp.mean((line[0] * x + line[1] - y) ** 2)

    gradient = jax.jit(jax.grad(loss))
    line = jnp.zeros(2)
    for _ in range(STEPS):
        line -= 0.5 * jnp.mean(process_allgather(gradient(line)).reshape(size, 2), axis=0)
    return jax.process_count(), float(line[0]), float(line[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--members", type=int, default=2)
    members = parser.parse_args().members

    results = Ring(members, fit, framework="jax").run()

    for rank, (count, slope, offset) in enumerate(results):
        print(f"rank {rank} of {count}: y = {slope:.3f} x {offset:+.3f}")
    _, slope, offset = results[0]
    near = abs(slope - SLOPE) < 0.01 and abs(offset - OFFSET) < 0.01
    return 0 if near and len(set(results)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
