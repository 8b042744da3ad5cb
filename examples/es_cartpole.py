#!/usr/bin/env python3
"""Evolution strategies on CartPole-v1, evaluated by the workers of a pool.

    python examples/es_cartpole.py            # train until the policy balances the pole
    python examples/es_cartpole.py --chaos    # the same while a worker is killed every two seconds

A generation looks at points around the parameters: each worker plays an episode at ``parameters +
noise`` and one at ``parameters - noise`` (mirrored sampling), and the ranks of the returns weigh
the noise into a gradient. The table of noise is made once and shared: on each machine all workers
read the same memory, so that only an index into it travels. The end depends on the seed alone: an episode is seeded by its place,
returns are gathered by place, and sums are taken in one order. So a run whose workers are killed
ends with the same parameters, bit for bit; compare the SHA-256 that both print.

Writes the policy (policy.npz) and, where matplotlib is installed, the learning curve
(learning_curve.png) into ``--out``. The exit code is 0 if the mean return over 100 fresh episodes is at least 475, else 1.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fiber as mp

try:
    import gymnasium
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    sys.exit(
        'this example needs Gymnasium and NumPy: python3 -m pip install "fiber-core[examples]"'
    )

Floats = NDArray[np.float64]

TASK = "CartPole-v1"
SOLVED = 475.0
# what a look at the policy during training must show: more, so that the last test is no luck
SURE = 490.0
LOOKS = 16
HIDDEN = 16
SHAPES = ((4, HIDDEN), (HIDDEN,), (HIDDEN, 2), (2,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
# makes position, speed, angle and turn rate of similar size
SCALE = np.array([1 / 2.4, 1 / 2.0, 1 / 0.21, 1 / 2.0])
NOISE = 1 << 18
SIGMA = 0.2
RATE = 0.1
# episodes of different purpose never share a seed
START, TRAIN, CHECK, TEST = range(4)


# -- what workers do


class Worker:
    """What a worker keeps between tasks: the table of noise and an environment."""

    noise: Floats
    environment: gymnasium.Env[Any, Any]


def set_up(noise: mp.Shared[Floats]) -> None:
    """The pool's initializer."""
    Worker.noise = noise.value
    Worker.environment = gymnasium.make(TASK, disable_env_checker=True)


def play(parameters: Floats, place: Sequence[int]) -> float:
    """The return of one episode; ``place`` (seed, purpose, generation, index) seeds it."""
    first, first_bias, second, second_bias = layers(parameters)
    seed = int(np.random.SeedSequence(place).generate_state(1)[0])
    observation, _ = Worker.environment.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        hidden = np.tanh(observation * SCALE @ first + first_bias)
        left, right = hidden @ second + second_bias
        observation, reward, fell, timed_out, _ = Worker.environment.step(int(right > left))
        total += float(reward)
        over = fell or timed_out
    return total


def play_pair(parameters: Floats, task: tuple[int, tuple[int, ...]]) -> tuple[float, float]:
    """The returns at both sides of the parameters, in episodes that begin alike."""
    offset, place = task
    step = SIGMA * Worker.noise[offset : offset + SIZE]
    return play(parameters + step, place), play(parameters - step, place)


def layers(parameters: Floats) -> list[Floats]:
    """The weights and biases of the policy, from its flat parameters."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [
        part.reshape(shape)
        for part, shape in zip(np.split(parameters, ends[:-1]), SHAPES, strict=True)
    ]


# -- what the master does


def noise_table(seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(NOISE)


class Generation(NamedTuple):
    """One point of the learning curve."""

    number: int
    #: mean return of the population
    population: float
    #: mean return of the parameters themselves, after the step
    policy: float
    episodes: int
    seconds: float


class Adam:
    """Adam, in NumPy."""

    def __init__(self, size: int) -> None:
        self._mean, self._square, self._steps = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: Floats) -> Floats:
        """How far to go along a gradient."""
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.01 * (gradient**2 - self._square)
        mean = self._mean / (1 - 0.9**self._steps)
        square = self._square / (1 - 0.99**self._steps)
        return RATE * mean / (np.sqrt(square) + 1e-8)


def ranks(returns: Floats) -> Floats:
    """The rank of each return from -0.5 to 0.5; equal returns share one."""
    ordered = np.sort(returns, axis=None)
    below = np.searchsorted(ordered, returns, side="left")
    upto = np.searchsorted(ordered, returns, side="right")
    return (below + upto - 1) / 2 / (returns.size - 1) - 0.5


class Strategy:
    """The parameters, and how a generation changes them."""

    def __init__(self, pool: Any, noise: Floats, seed: int, population: int) -> None:
        self.parameters: Floats = 0.1 * np.random.default_rng((seed, START)).standard_normal(SIZE)
        self._pool = pool
        self._seed = seed
        self._pairs = population // 2
        self._noise = noise
        self._adam = Adam(SIZE)

    def advance(self, generation: int) -> Floats:
        """Evaluate a population and take a step; the returns, a row for each pair."""
        chance = np.random.default_rng((self._seed, TRAIN, generation))
        offsets = chance.integers(0, NOISE - SIZE, self._pairs).tolist()
        tasks = [
            (offset, (self._seed, TRAIN, generation, index)) for index, offset in enumerate(offsets)
        ]
        evaluate = functools.partial(play_pair, self.parameters)
        returns = np.array(self._pool.map(evaluate, tasks, chunksize=1))
        shaped = ranks(returns)
        gradient = np.zeros(SIZE)
        # one after another: a sum's order changes its last bits
        for offset, (above, below) in zip(offsets, shaped, strict=True):
            gradient += (above - below) * self._noise[offset : offset + SIZE]
        self.parameters = self.parameters + self._adam.step(gradient / (2 * self._pairs * SIGMA))
        return returns

    def score(self, purpose: int, generation: int, episodes: int) -> float:
        """The mean return of the parameters over fresh episodes."""
        places = [(self._seed, purpose, generation, index) for index in range(episodes)]
        evaluate = functools.partial(play, self.parameters)
        return float(np.mean(self._pool.map(evaluate, places, chunksize=1)))


def train(strategy: Strategy, generations: int, *, go_on: bool) -> Iterator[Generation]:
    """Yield each generation until the policy is good, and so are its neighbours."""
    for number in range(1, generations + 1):
        start = time.perf_counter()
        returns = strategy.advance(number)
        policy = strategy.score(CHECK, number, LOOKS)
        seconds = time.perf_counter() - start
        one = Generation(number, float(returns.mean()), policy, returns.size + LOOKS, seconds)
        yield one
        if one.policy >= SURE and one.population >= SOLVED and not go_on:
            return


class Chaos:
    """Kills a random worker of this program every so many seconds, on a thread of its own."""

    def __init__(self, period: float) -> None:
        self.killed = 0
        self._period = period
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos")

    def __enter__(self) -> Chaos:
        if self._period:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._period:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._period):
            workers = mp.active_children()
            if workers:
                # through its object: its number may be one of another machine's
                worker = random.choice(workers)
                # once it is up, for it is work that shall be lost
                if worker.pid is not None:
                    worker.kill()
                    self.killed += 1


# -- what the user sees


def show(training: Iterator[Generation], chaos: Chaos, generations: int) -> list[Generation]:
    """Follow the training: a live line in a terminal, else a line for each generation."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(highlight=False)
    seen = []
    live = Progress(
        TextColumn("generation {task.completed}/{task.total}"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with live:
        bar = live.add_task("", total=generations)
        for one in training:
            seen.append(one)
            text = f"policy {one.policy:5.1f}  population {one.population:5.1f}"
            text += f"  {one.episodes / one.seconds:4.0f} episodes/s"
            text += f"  {chaos.killed} killed" if chaos.killed else ""
            live.update(bar, completed=one.number, description=text)
            if not console.is_terminal:
                print(f"generation {one.number:3}  {text}", flush=True)
    return seen


def plot(history: Sequence[Generation], score: float, path: Path) -> str:
    """Plot the learning curve; returns what to say of it."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return f"no {path.name}: it takes matplotlib, which is not installed"

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    numbers = [one.number for one in history]
    axes.plot(numbers, [one.policy for one in history], "o-", ms=3, label="policy")
    axes.plot(numbers, [one.population for one in history], color="0.6", label="population")
    axes.axhline(SOLVED, color="0.4", lw=1, ls="--", label=f"solved ({SOLVED:.0f})")
    axes.set(xlabel="generation", ylabel="mean return", ylim=(0, 520))
    axes.set_title(f"{TASK}: mean {score:.1f} over 100 fresh episodes", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return f"{path.name} is in {path.parent}"


def save(parameters: Floats, path: Path) -> None:
    first, first_bias, second, second_bias = layers(parameters)
    np.savez(
        path,
        parameters=parameters,
        scale=SCALE,
        first=first,
        first_bias=first_bias,
        second=second,
        second_bias=second_bias,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, default=0, help="the result depends on it alone")
    add("--generations", type=positive(int), default=100, help="the most there may be")
    add("--population", type=positive(int), default=64, help="points looked at in a generation")
    add("--workers", type=positive(int), default=None, help="processes (None: one for each CPU)")
    add("--out", type=Path, default=Path("es_cartpole"), help="folder for what is written")
    add("--go-on", action="store_true", help="do all generations, also once the task is solved")
    add(
        "--chaos",
        type=positive(float),
        nargs="?",
        const=2.0,
        default=0.0,
        metavar="SECONDS",
        help="kill a random worker every so many seconds (2 where none are given)",
    )
    given = parser.parse_args()
    if given.population % 2:
        parser.error("--population must be even: points come in pairs")
    if given.seed < 0:
        parser.error("--seed must not be negative")
    return given


def positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise ValueError
        return value

    parse.__name__ = f"positive {kind.__name__}"
    return parse


def main() -> int:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    noise = mp.shared(noise_table(given.seed))
    with (
        mp.Pool(given.workers, initializer=set_up, initargs=(noise,)) as pool,
        Chaos(given.chaos) as chaos,
    ):
        strategy = Strategy(pool, noise.value, given.seed, given.population)
        training = train(strategy, given.generations, go_on=given.go_on)
        history = show(training, chaos, given.generations)
        score = strategy.score(TEST, 0, 100)
    seconds = time.perf_counter() - start
    save(strategy.parameters, given.out / "policy.npz")
    plotted = plot(history, score, given.out / "learning_curve.png")
    episodes = sum(one.episodes for one in history) + 100
    print(f"{episodes} episodes in {seconds:.1f} s, {chaos.killed} workers killed")
    print(f"policy.npz is in {given.out}; {plotted}")
    print(f"sha256 of the parameters: {hashlib.sha256(strategy.parameters.tobytes()).hexdigest()}")
    verdict = "solved" if score >= SOLVED else f"not solved, that takes {SOLVED:.0f}"
    print(f"mean return over 100 fresh episodes: {score:.1f} ({verdict})")
    return 0 if score >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main())
