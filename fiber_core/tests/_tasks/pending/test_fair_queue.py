from __future__ import annotations

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.call_state import CallState, SharedCount
from fiber._tasks.pending.ledger import FairQueue


def calls(number):
    made = [
        CallState(n, chunk=1, retry=True, pace=Pace(0.01), total=SharedCount())
        for n in range(number)
    ]
    for call in made:
        call.grow(4, closed=True)
    return made


def test_each_call_has_its_turn():
    queue = FairQueue()
    made = calls(3)
    for call in made:
        queue.add(call)
        queue.add(call)
    seen = []
    for _ in range(6):
        seen.append(queue.next_ordinary())
        queue.rotate_ordinary()
    assert seen == made * 2


def test_a_call_without_work_is_skipped_and_may_come_back():
    queue = FairQueue()
    empty, full = calls(2)
    queue.add(empty)
    queue.add(full)
    empty.take(100)
    assert queue.next_ordinary() is full
    empty.put_back(0, 1)
    queue.add(empty)
    queue.rotate_ordinary()
    assert queue.next_ordinary() is empty
    empty.forget()
    full.forget()
    assert queue.next_ordinary() is None


def test_suspects_have_a_queue_of_their_own():
    queue = FairQueue()
    first, second = calls(2)
    for call in (first, second):
        call.suspect(0, 2)
        queue.add(call)
    seen = []
    while (call := queue.next_suspect()) is not None:
        call.take_suspect()
        seen.append(call)
        queue.rotate_suspects()
    assert seen == [first, second, first, second]
