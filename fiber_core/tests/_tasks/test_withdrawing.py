"""Work that is taken back before it was sent to a worker."""

from concurrent.futures import CancelledError

import pytest

from tasks_world import Master


def same(x):
    return x


@pytest.fixture
def master():
    return Master("a")


def test_withdrawn_items_have_a_cancelled_error_and_the_others_run(master):
    call, sink = master.call(same, [1, 2, 3, 4])

    master.dispatcher.withdraw(call, 1, 3)
    master.ask(master.peers["a"])
    master.work(master.peers["a"], same)

    assert {k: v for k, v in sink.outcomes.items() if k in {0, 3}} == {0: 1, 3: 4}
    assert all(isinstance(sink.outcomes[index], CancelledError) for index in (1, 2))
    assert sink.is_done


def test_a_call_that_grows_goes_on_after_a_withdrawal(master):
    call, sink = master.call(same, None)
    master.dispatcher.extend(call, [1, 2])

    master.dispatcher.withdraw(call, 0, 2)
    master.dispatcher.extend(call, [3], closed=True)
    master.ask(master.peers["a"])
    master.work(master.peers["a"], same)

    assert sink.outcomes[2] == 3
    assert sink.is_done


def test_on_dispatch_is_called_for_sent_items_only(master):
    sent = []
    call, _ = master.call(same, [1, 2], on_dispatch=lambda start, stop: sent.append((start, stop)))
    assert sent == []

    master.dispatcher.withdraw(call, 1, 2)
    master.ask(master.peers["a"])
    master.work(master.peers["a"], same)

    assert sent == [(0, 1)]


def test_a_call_that_is_over_has_nothing_to_withdraw(master):
    call, sink = master.call(same, [1])
    master.ask(master.peers["a"])
    master.work(master.peers["a"], same)

    master.dispatcher.withdraw(call, 0, 1)

    assert sink.outcomes == {0: 1}
