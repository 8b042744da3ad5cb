"""The connection of a job to its parent: when it is made again."""

import threading

from fiber._agent.job.parent_link import Lost, ParentLink
from fiber.exceptions import PeerLostError
from fiber.model.timing import Timing


def test_a_parent_that_is_gone_is_dialled_at_intervals_however_often_the_thread_is_woken():
    attempts, is_dialled_again = [], threading.Event()

    def connect(url):
        if attempts:
            is_dialled_again.set()
        attempts.append(url)
        raise PeerLostError("connection refused")

    def on_event():
        # as the supervisor does: there may be output to send
        link.wake()

    link = ParentLink(("tcp://gone",), connect, on_event, timing=Timing(redial=3600.0, flush=20.0))
    link.start()
    assert not is_dialled_again.wait(0.3)
    link.close()

    assert not link._thread.is_alive()
    assert link.take_events() == [Lost("connection refused")]
    assert attempts == ["tcp://gone"]
