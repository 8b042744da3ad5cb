"""Iterations of evolution strategies with simulated roll-outs, on more and more workers.

Every roll-out takes as long as its seed says, with the spread of real episodes, and otherwise does
nothing: what is measured is how well a framework keeps so many workers busy between two updates.
The ideal is what so many workers would take that get the next task the moment they are free.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
import time
from pathlib import Path
from typing import Any

from benchmarks import contenders, memory
from benchmarks.curves import figures
from benchmarks.curves import point as points
from benchmarks.curves.settings import Settings
from benchmarks.measure import Say
from benchmarks.model import BASELINE, OURS

POPULATION = 2_048
ITERATIONS = 50
#: seconds of a roll-out, and the deviation of its logarithm: some end early, a few run on
MEAN, SPREAD = 0.1, 0.5
WORKERS = (8, 16, 32, 64, 128, 256, 512, 1024)
#: parameters that are evolved, and how far roll-outs and updates go from where they are
_SIZE, _SIGMA, _RATE = 8, 0.1, 0.2


def seconds_of(seed: int) -> float:
    """How long a roll-out takes."""
    return random.Random(~seed).lognormvariate(math.log(MEAN) - SPREAD**2 / 2, SPREAD)


def roll_out(centre: tuple[float, ...], seed: int) -> float:
    """How well parameters near the centre do, once the episode is over."""
    time.sleep(seconds_of(seed))
    return -sum((value - 1.0) ** 2 for value in _near(centre, seed))


def _near(centre: tuple[float, ...], seed: int) -> list[float]:
    rng = random.Random(seed)
    return [value + _SIGMA * rng.gauss(0.0, 1.0) for value in centre]


def step(pool: Any, centre: tuple[float, ...], iteration: int, population: int) -> Any:
    """One generation; the new centre and its mean fitness."""
    seeds = range(iteration * population, (iteration + 1) * population)
    found = pool.map(functools.partial(roll_out, centre), seeds)
    mean = sum(found) / population
    deviation = math.sqrt(sum((one - mean) ** 2 for one in found) / population) or 1.0
    moved = [0.0] * len(centre)
    for seed, fitness in zip(seeds, found, strict=True):
        weight = (fitness - mean) / deviation
        for at, value in enumerate(_near(centre, seed)):
            moved[at] += weight * (value - centre[at])
    scale = _RATE / (population * _SIGMA)
    return tuple(old + scale * new for old, new in zip(centre, moved, strict=True)), mean


def ideal(workers: int, iteration: int, population: int) -> float:
    """Seconds of a generation on workers that get their next task the moment they are free."""
    free = [0.0] * min(workers, population)
    for seed in range(iteration * population, (iteration + 1) * population):
        heapq.heapreplace(free, free[0] + seconds_of(seed))
    return max(free)


def point(contender: str, workers: int, iterations: int, population: int) -> dict[str, Any]:
    """Seconds of each generation, after one that is not counted."""
    memory.prepare_for(contender, workers)
    centre, took, fitness = (0.0,) * _SIZE, [], []
    with contenders.session(contender, workers) as pool:
        step(pool, centre, iterations, population)
        for iteration in range(iterations):
            start = time.perf_counter()
            centre, mean = step(pool, centre, iteration, population)
            took.append(time.perf_counter() - start)
            fitness.append(mean)
    assert fitness[-1] >= fitness[0], "the centre does not become better"
    return {"seconds": took, "fitness": [fitness[0], fitness[-1]]}


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Measure every number of workers; both contenders one after the other at each."""
    population = settings.some(POPULATION, 16)
    found: dict[str, Any] = {
        "population": population,
        "iterations": settings.some(ITERATIONS, 2),
        "mean": MEAN,
        "spread": SPREAD,
        "points": [],
    }
    for workers in settings.few_of(WORKERS, (2, 3)):
        generation = ideal(workers, 0, population)
        # on few workers fifty take half an hour and tell no more than ten
        iterations = max(
            min(2, found["iterations"]),
            min(found["iterations"], int(settings.seconds / generation)),
        )
        best = sum(ideal(workers, number, population) for number in range(iterations))
        one: dict[str, Any] = {"workers": workers, "iterations": iterations, "ideal": best}
        for who in (OURS, BASELINE):
            say(f"evolution: {workers} workers, {iterations} iterations, {who}")
            arguments = {
                "contender": who,
                "workers": workers,
                "iterations": iterations,
                "population": population,
            }
            patience = 300 + 5 * best + 0.5 * workers
            try:
                one[who] = points.measure(__name__, arguments, patience)
            except points.PointError as error:
                say(str(error))
                one[who] = {"error": str(error)}
        found["points"].append(one)
    return found


def draw(data: dict[str, Any], path: Path) -> None:
    """Seconds of all iterations by the number of workers, beside the ideal."""
    whole = data["iterations"]
    caption = (
        f"{whole} iterations of evolution strategies, population {data['population']:,}, "
        f"roll-outs of {1000 * data['mean']:.0f} ms on average"
    )
    with figures.figure(path, caption, data) as axes:
        for who in (OURS, BASELINE):
            shown = [one for one in data["points"] if "seconds" in one[who]]
            times = [whole * sum(one[who]["seconds"]) / one["iterations"] for one in shown]
            axes.plot([one["workers"] for one in shown], times, label=who, **figures.style(who))
        best = [whole * one["ideal"] / one["iterations"] for one in data["points"]]
        axes.plot([one["workers"] for one in data["points"]], best, "k--", lw=1, label="ideal")
        axes.set(
            xscale="log", yscale="log", xlabel="workers", ylabel=f"seconds of {whole} iterations"
        )
        figures.plain_ticks(axes.xaxis, [one["workers"] for one in data["points"]])
        axes.legend(fontsize=8)
