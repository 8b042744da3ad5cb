"""Gymnasium: environments in processes, with and without shared memory, that fail."""

import multiprocessing
import warnings

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

CONTEXT = "spawn"


class Rooms(gymnasium.Env):
    """Observations of several kinds; some seeds fail."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1.0, 1.0, (2, 3), dtype=np.float32),
            "room": spaces.Discrete(5),
            "doors": spaces.MultiBinary(4),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {"seed": seed}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            raise ValueError(f"no door at step {self.steps}")
        return self.observe(), float(action), self.steps == 6, False, {}

    def observe(self):
        return {
            "place": self.np_random.uniform(-1, 1, (2, 3)).astype(np.float32),
            "room": self.np_random.integers(5),
            "doors": self.np_random.integers(0, 2, 4, dtype=np.int8),
        }


def make_pole():
    return gymnasium.make("CartPole-v1")


def compare(makers, **options):
    here = SyncVectorEnv(makers)
    there = AsyncVectorEnv(makers, context=CONTEXT, **options)
    print(type(there.processes[0]).__module__.startswith(multiprocessing.__name__))
    same = True
    actions = [here.action_space.seed(5) and here.action_space.sample() for _ in range(40)]
    rounds = [(here.reset(seed=4), there.reset(seed=4))]
    rounds += [(here.step(action), there.step(action)) for action in actions]
    for ours, theirs in rounds:
        same = same and data_equivalence(ours[0], theirs[0])
        same = same and all(
            np.array_equal(a, b) for a, b in zip(ours[1:-1], theirs[1:-1], strict=True)
        )
    print(options, same, rounds[-1][1][1])
    here.close()
    there.close()
    print([process.exitcode for process in there.processes])


def fail(**options):
    envs = AsyncVectorEnv([Rooms, lambda: Rooms(2), Rooms], context=CONTEXT, **options)
    envs.reset(seed=1)
    try:
        for _ in range(5):
            envs.step([0, 1, 2])
    except ValueError as error:
        print("ValueError:", error)
    envs.close()
    print([process.exitcode for process in envs.processes])


if __name__ == "__main__":
    multiprocessing.freeze_support()
    warnings.simplefilter("ignore")
    compare([make_pole] * 3, shared_memory=False)
    compare([make_pole] * 3, shared_memory=True, max_concurrency=2)
    compare([Rooms] * 2, shared_memory=True)
    fail(shared_memory=False)
    fail(shared_memory=True)
