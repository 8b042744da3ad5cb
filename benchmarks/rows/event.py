"""An event there and one back, a condition by turns, and a barrier of four processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, BASELINE, contenders.DRAGON)
METRICS = (
    Metric("event", "Event, there and back", "µs", bars=(Bar(2.0),)),
    Metric("condition", "Condition, two by turns", "µs", bars=(Bar(2.0),)),
    Metric("barrier", "Barrier of four", "µs", bars=(Bar(2.0),)),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    mp = contenders.module(contender)
    there, back, barrier = mp.Event(), mp.Event(), mp.Barrier(4)
    condition, turn = mp.Condition(), mp.Value("i", 1, lock=False)
    # for the first, that the process is up, as is the turn
    there.set()
    with (
        contenders.repeating(mp, tasks.answer, there, back) as (answering,),
        contenders.repeating(mp, tasks.take_turn, condition, turn, 1) as (taking,),
        contenders.repeating(mp, tasks.meet, barrier, processes=3) as meeting,
    ):
        back.clear()

        def once() -> dict[str, float]:
            answering.send(sizes.meetings)
            for _ in range(sizes.meetings):
                there.set()
                back.wait()
                back.clear()
            event = answering.recv() / sizes.meetings
            taking.send(sizes.meetings)
            for _ in range(sizes.meetings):
                tasks.take_turn(condition, turn, 0)
            turns = taking.recv() / sizes.meetings
            for end in meeting:
                end.send(sizes.meetings)
            start = time.perf_counter()
            for _ in range(sizes.meetings):
                barrier.wait()
            met = (time.perf_counter() - start) / sizes.meetings
            for end in meeting:
                end.recv()
            return {"event": 1e6 * event, "condition": 1e6 * turns, "barrier": 1e6 * met}

        yield once
