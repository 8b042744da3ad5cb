from __future__ import annotations

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.calls import Call, Tally
from fiber._tasks.pending.ledger import Lines


def calls(number):
    made = [Call(n, chunk=1, retry=True, pace=Pace(0.01), total=Tally()) for n in range(number)]
    for call in made:
        call.grow(4, closed=True)
    return made


def test_each_call_has_its_turn():
    lines = Lines()
    made = calls(3)
    for call in made:
        lines.join(call)
        lines.join(call)
    seen = []
    for _ in range(6):
        seen.append(lines.ordinary())
        lines.turn_ordinary()
    assert seen == made * 2


def test_a_call_without_work_is_skipped_and_may_come_back():
    lines = Lines()
    empty, full = calls(2)
    lines.join(empty)
    lines.join(full)
    empty.take(100)
    assert lines.ordinary() is full
    empty.put_back(0, 1)
    lines.join(empty)
    lines.turn_ordinary()
    assert lines.ordinary() is empty
    empty.forget()
    full.forget()
    assert lines.ordinary() is None


def test_suspects_have_a_line_of_their_own():
    lines = Lines()
    first, second = calls(2)
    for call in (first, second):
        call.suspect(0, 2)
        lines.join(call)
    seen = []
    while (call := lines.suspect()) is not None:
        call.take_suspect()
        seen.append(call)
        lines.turn_suspect()
    assert seen == [first, second, first, second]
