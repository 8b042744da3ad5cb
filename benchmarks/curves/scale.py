"""One master with 64 to 1,024 worker processes, and with up to 10,000 that share a few processes.

Of the second kind only the master is told: with the processes of so many workers a machine of few
CPUs is busier than the master is.
"""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import contenders, memory, tasks
from benchmarks.curves import figures
from benchmarks.curves import point as points
from benchmarks.curves.settings import Settings
from benchmarks.measure import Say
from benchmarks.model import BASELINE, OURS

WORKERS = (64, 128, 256, 512, 1024)
#: connections of one master; a process may have some 20,000 descriptors by the usual hard limit
CONNECTIONS = (64, 256, 1024, 4096, 10_000)
#: tasks by which growth shows
COUNTS = (1_000, 10_000, 100_000, 1_000_000)
#: tasks that travel each in a message of its own
SINGLE = 5_000
#: of these contenders; as swarm, ours without a process for each worker
SWARM = "connections"


def point(contender: str, workers: int, rounds: int, counts: list[int], single: int) -> Any:
    """Rates, and the master's memory and CPU, of one contender with so many workers."""
    if contender == SWARM:
        from benchmarks.swarm import swarm

        session: Any = swarm(workers, patience=300.0)
    else:
        memory.prepare_for(contender, workers)
        session = contenders.session(contender, workers)
    # what comes with the first worker is no part of what each of many takes
    with contenders.session(contender if contender != SWARM else OURS, 2):
        before, begun = memory.resident(), time.perf_counter()
        with session as pool:
            found: dict[str, Any] = {
                "start": time.perf_counter() - begun,
                "memory": (memory.resident() - before) / workers,
                "maps": {
                    str(count): [_run(pool.map, count) for _ in range(rounds)] for count in counts
                },
            }
            if contender == SWARM:
                found["single"] = [_run(pool.map_singly, single) for _ in range(rounds)]
            found["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
            found["descriptor_limit"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return found


def _run(map_: Any, count: int) -> dict[str, float]:
    cpu, start = time.process_time(), time.perf_counter()
    assert len(map_(tasks.noop, range(count))) == count
    seconds = time.perf_counter() - start
    return {"rate": count / seconds, "cpu": 1e6 * (time.process_time() - cpu) / count}


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Every number of workers and connections, each in a program of its own."""
    counts = list(settings.some(COUNTS, (10, 100)))
    found: dict[str, Any] = {OURS: {}, BASELINE: {}, SWARM: {}, "both": counts[-2]}
    plan = [
        *((who, few) for few in settings.few_of(WORKERS, (2, 3)) for who in (OURS, BASELINE)),
        *((SWARM, many) for many in settings.few_of(CONNECTIONS, (2, 5))),
    ]
    for who, workers in plan:
        say(f"scale: {workers} workers, {who}")
        arguments = {
            "contender": who,
            "workers": workers,
            "rounds": settings.some(settings.rounds, 1),
            # where a task costs twenty times as much, a tenth of them tell as much
            "counts": counts if who != BASELINE else counts[:-1],
            "single": settings.some(SINGLE, 10),
        }
        try:
            found[who][str(workers)] = points.measure(__name__, arguments, 600 + workers)
        except points.PointError as error:
            say(str(error))
            found[who][str(workers)] = {"error": str(error)}
    return found


def draw(data: dict[str, Any], path: Path) -> None:
    """Rates and CPU by the number of workers, and CPU by the number of tasks."""
    with figures.figure(path, "no-op tasks, each of chunksize=1, on one master", data, 3) as axes:
        rates, costs, growth = axes
        for who in (OURS, BASELINE):
            shown = _shown(data[who])
            # the longest that both did
            ys = [_median(one["maps"][str(data["both"])], "rate") for one in shown.values()]
            rates.plot(list(shown), ys, label=who, **figures.style(who))
        rates.axhline(50_000, color="black", ls="--", lw=1, label="bar")
        rates.set(
            xscale="log", yscale="log", xlabel="worker processes", ylabel="tasks/s, 10⁵ tasks"
        )
        figures.plain_ticks(rates.xaxis, list(_shown(data[OURS])))
        rates.legend(fontsize=8)
        swarm = _shown(data[SWARM])
        singles = [_median(one["single"], "cpu") for one in swarm.values()]
        costs.plot(list(swarm), singles, color="tab:blue", marker="o", label="one task a message")
        batched = [_median(list(one["maps"].values())[-1], "cpu") for one in swarm.values()]
        costs.plot(list(swarm), batched, color="tab:green", marker="o", label="10⁶ in batches")
        costs.set(
            xscale="log", yscale="log", xlabel="connections", ylabel="master's CPU a task, µs"
        )
        figures.plain_ticks(costs.xaxis, list(swarm))
        costs.legend(fontsize=8)
        for who in (OURS, BASELINE):
            shown = _shown(data[who])
            for workers in sorted({*list(shown)[:1], *list(shown)[-1:]}):
                maps = shown[workers]["maps"]
                ys = [_median(rounds, "cpu") for rounds in maps.values()]
                look = {**figures.style(who), "ls": "-" if workers == min(shown) else ":"}
                growth.plot(
                    [int(count) for count in maps], ys, label=f"{who}, {workers:,} workers", **look
                )
        growth.set(xscale="log", yscale="log", xlabel="tasks", ylabel="master's CPU a task, µs")
        growth.legend(fontsize=8)


def _shown(points_: dict[str, Any]) -> dict[int, Any]:
    """What was measured; JSON knows numbers as keys only as text."""
    return {int(workers): one for workers, one in points_.items() if "error" not in one}


def _median(rounds: list[dict[str, float]], what: str) -> float:
    return statistics.median(one[what] for one in rounds)
