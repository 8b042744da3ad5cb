"""An event: set, cleared, waited for."""

from fiber._objects.sync.event import Flag
from fiber._objects.sync.wait_queue import Request, Verdict


def told(answers):
    return [(one.request.party, one.verdict) for one in answers]


def test_those_who_wait_go_on_when_it_is_set():
    flag = Flag()
    assert flag.ask(Request("a"), wait=True) == []
    assert flag.ask(Request("b"), wait=True) == []

    assert told(flag.set()) == [("a", Verdict.YES), ("b", Verdict.YES)]
    assert told(flag.ask(Request("c"), wait=True)) == [("c", Verdict.YES)]


def test_nobody_waits_who_does_not_want_to():
    flag = Flag()
    assert told(flag.ask(Request("a"), wait=False)) == [("a", Verdict.NO)]
    flag.set()
    assert told(flag.ask(Request("a"), wait=False)) == [("a", Verdict.YES)]
    flag.clear()

    assert told(flag.ask(Request("a"), wait=False)) == [("a", Verdict.NO)]


def test_one_who_cancels_is_told_so_and_the_others_wait_on():
    flag = Flag()
    flag.ask(Request("a", 1), wait=True)
    flag.ask(Request("b", 1), wait=True)

    assert told(flag.cancel("a", 1)) == [("a", Verdict.NO)]
    assert flag.cancel("a", 1) == []
    assert flag.waiting == 1


def test_processes_that_end_wait_no_more():
    flag = Flag()
    for name in "abc":
        flag.ask(Request(name), wait=True)

    assert flag.leave("a", 0) + flag.lose("b", "b") == []
    assert told(flag.set()) == [("c", Verdict.YES)]
