"""Requests of a master to its supervisor, from any thread and until the end."""

import os
import signal
import threading

import pytest

from fiber._agent.supervisor.client import SupervisorGoneError
from fiber.exceptions import ForkedError, WireError


def test_closing_twice_is_no_error(supervised):
    supervised.client.close()
    supervised.client.close()

    assert supervised.client.has_ended
    assert not supervised.client.is_running
    with pytest.raises(SupervisorGoneError):
        supervised.submit("wait")


def test_many_threads_may_close_it(supervised):
    threads = [threading.Thread(target=supervised.client.close) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert supervised.process.returncode == 0


def test_a_fork_of_the_user_cannot_use_it_and_harms_nothing(supervised):
    supervised.ready("wait")
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        supervised.client.close()
        try:
            supervised.client.query()
        except ForkedError:
            os._exit(0)
        os._exit(1)

    assert os.waitpid(pid, 0)[1] == 0
    assert len(supervised.client.query()) == 1


def test_what_cannot_be_sent_harms_nothing(supervised):
    with pytest.raises(WireError):
        supervised.submit("wait", labels={"x": object()})

    assert supervised.run("exit_with", b"\3").exit_code == 3
