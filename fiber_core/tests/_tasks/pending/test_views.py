from __future__ import annotations

from fiber._tasks.pending import CallAdded, WorkerDraining


def test_a_call_shows_how_far_it_is(play):
    play.join("a")
    play(CallAdded(1, 4))
    play.finish("a", seconds=0.5)
    view = play.table.call(1)
    assert (view.count, view.finished, view.abandoned, view.queued) == (4, 1, 0, 3)
    assert (view.progress, view.mean) == (0.25, 0.5)
    play(CallAdded(2, 0, closed=False))
    assert play.table.call(2).progress == 1.0
    assert play.table.call(3) is None


def test_a_worker_shows_what_it_holds(play):
    play.join("a", slots=2, maxtasksperchild=5)
    play(CallAdded(1, 4))
    play(WorkerDraining("a"))
    (view,) = play.table.snapshot().workers
    assert (view.worker, view.credits, view.units_left, view.is_draining) == ("a", 1, 4, True)
    assert view.held == play.table.held("a")
    (held,) = view.held
    assert (held.call, held.start, held.stop, held.done, held.is_suspect) == (1, 0, 1, 0, False)
    assert play.table.held("nobody") == ()


def test_the_longest_idle_worker_is_the_one_that_may_be_let_go(play):
    assert play.table.longest_idle is None
    play.join("a")
    play.now = 130.0
    play.join("b")
    assert play.table.longest_idle == ("a", 100.0)
    assert play.table.idle == 2
    assert play.table.is_idle
