#!/usr/bin/env python3
"""Four CartPole environments, each in a process of its own, stepped one by one and all at once.

    python examples/async_manager.py                # prints a table
    python examples/async_manager.py --steps 1000

A method of a ``BaseManager``'s proxy returns when its value is here, so four environments take
turns. A method of an ``AsyncManager``'s proxy returns a handle at once, so all four work at the
same time; ``gather`` waits for the four values. Both ways play the same episodes from the same
seeds, and the program fails if they see a different world.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fiber.managers import AsyncManager, BaseManager, gather

try:
    import gymnasium
except ImportError:
    sys.exit('this example needs Gymnasium: python3 -m pip install "fiber-core[examples]"')

ENVIRONMENTS = 4


class Environment:
    """A CartPole that begins anew by itself, and may take longer than it needs to."""

    def __init__(self, seed: int, delay: float) -> None:
        self._env = gymnasium.make("CartPole-v1")
        self._delay = delay
        self._env.reset(seed=seed)

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """What is seen after an action, its reward, and whether an episode has ended."""
        time.sleep(self._delay)
        seen, reward, terminated, truncated, _ = self._env.step(action)
        done = terminated or truncated
        if done:
            seen, _ = self._env.reset()
        return [float(x) for x in seen], float(reward), done


class Taking(BaseManager):
    """Its environments take turns."""


class Sharing(AsyncManager):
    """Its environments work at the same time."""


for manager in (Taking, Sharing):
    manager.register("Environment", Environment)


def one_by_one(environments: Sequence[Any], actions: Sequence[int]) -> list[Any]:
    return [env.step(action) for env, action in zip(environments, actions, strict=True)]


def all_at_once(environments: Sequence[Any], actions: Sequence[int]) -> list[Any]:
    return gather([env.step(action) for env, action in zip(environments, actions, strict=True)])


def play(
    kind: type[BaseManager],
    step: Callable[[Sequence[Any], Sequence[int]], list[Any]],
    steps: int,
    delay: float,
) -> tuple[float, list[Any]]:
    """Seconds that the steps took, and all that was seen."""
    managers = [kind() for _ in range(ENVIRONMENTS)]
    for one in managers:
        one.start()
    try:
        environments = [one.Environment(seed, delay) for seed, one in enumerate(managers)]
        began = time.perf_counter()
        # a policy that does not look: push to the left and to the right in turn
        seen = [step(environments, [number % 2] * ENVIRONMENTS) for number in range(steps)]
        return time.perf_counter() - began, seen
    finally:
        for one in managers:
            one.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of each environment")
    parser.add_argument("--delay", type=float, default=5.0, help="of the slow ones, milliseconds")
    arguments = parser.parse_args()

    print(f"{ENVIRONMENTS} environments, {arguments.steps} steps of each")
    print(f"{'a step takes':<22}{'one by one':>14}{'all at once':>14}{'ratio':>8}")
    for delay, name in (
        (0.0, "CartPole's time"),
        (arguments.delay, f"{arguments.delay:g} ms more"),
    ):
        turns, seen = play(Taking, one_by_one, arguments.steps, delay / 1000)
        together, seen_too = play(Sharing, all_at_once, arguments.steps, delay / 1000)
        if seen != seen_too:
            sys.exit("the two ways saw different worlds")
        print(f"{name:<22}{turns:>12.2f} s{together:>12.2f} s{turns / together:>7.1f}x")
    episodes = sum(done for row in seen for _, _, done in row)
    print(f"the same {episodes} episodes each time")


if __name__ == "__main__":
    main()
