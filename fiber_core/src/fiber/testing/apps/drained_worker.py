"""A pool whose worker is drained: it finishes its task, others do the rest, and none runs twice."""

# ruff: noqa: D103, SLF001  a program of a user, told by its first sentence; the job of one worker

import time
from collections import Counter
from typing import Any

import fiber
from fiber._runtime import runtime
from fiber.testing.apps import begin, print_facts

_TASKS = 60


def hold(ran: Any, began: Any, go: Any) -> str:
    if began.is_set():
        # its first worker was ended too early; the second one must not wait for what it has to do
        return "begun twice"
    began.set()
    ran.put(fiber.current_process().name)
    assert go.wait(60)
    return "held"


def name_after(ran: Any, number: int) -> str:
    time.sleep(0.02)
    ran.put(number)
    return fiber.current_process().name


def main() -> None:
    begin()
    ran: Any = fiber.SimpleQueue()
    began, go = fiber.Event(), fiber.Event()
    ended: list[float] = []
    with fiber.Pool(1) as pool:
        held = pool.apply_async(
            hold, (ran, began, go), callback=lambda _: ended.append(time.monotonic())
        )
        first = ran.get()
        (process,) = (one for one in pool._pool if one.name == first)
        child: Any = process._popen
        since = time.monotonic()
        # what the platform does by itself when it wants a job's place; the work takes a part of
        # the grace
        runtime.current().backend.terminate(child.job, grace=20.0)
        names = pool.starmap(name_after, [(ran, number) for number in range(_TASKS)])
        print_facts(
            measured={
                "seconds until others have done a leaving worker's work": time.monotonic() - since
            }
        )
        go.set()
        assert held.get(60) == "held", (
            f"the worker was ended {ended[0] - since:.1f} s after SIGTERM at the latest, before "
            f"another one had done its work; this test needs a platform that gives a job longer, "
            f"and says so by FIBER_GRACE"
        )
        assert first not in names, "a worker that has to go was given more"
        process.join(60)
        assert process.exitcode == 0, process.exitcode
    counts = Counter(ran.get() for _ in range(_TASKS))
    assert set(counts) == set(range(_TASKS)), "a task was run twice"
    assert ran.empty(), "a task was run twice"


if __name__ == "__main__":
    main()
