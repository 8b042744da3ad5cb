"""Requests on channels: each reaches the jobs of its own process and no others."""

import signal
import threading

import pytest

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.client import UnknownDevicesError
from fiber._agent.supervisor.messages import encode
from fiber.exceptions import SubmitError
from fiber.model import Device, JobState, Reason, ReasonKind, ResourceRequest
from supervised import is_alive, until_gone

PROVIDER = """
import pickle

class Toys:
    kind = "toy"
    def environment(self, devices):
        return {"TOYS": ",".join(device.id for device in devices)}

class Broken:
    def environment(self, devices):
        raise RuntimeError("the toys are broken")
"""


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """Puts the provider's module where the supervisor's children find it."""
    (tmp_path / "toys.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def toys(importable, supervised):
    """Offers two toys, whose provider the supervisor itself must never import."""
    import importlib
    import pickle
    import sys

    module = importlib.import_module("toys")
    devices = [Device(kind="toy", id=f"T{i}", index=i) for i in range(2)]

    def offer(provider="Toys"):
        supervised.client.offer(devices, {"toy": pickle.dumps(getattr(module, provider)())})

    yield offer
    del sys.modules["toys"]


def wants(count):
    return ResourceRequest(devices={"toy": count})


def nested(supervised, what):
    accepted = supervised.submit("submit_another", what)
    return accepted, int(supervised.lines(accepted, 1)[0].split()[1])


def test_a_process_has_its_supervisor_start_jobs(supervised):
    accepted, _ = nested(supervised, b"join")

    assert supervised.end(accepted).exit_code == 0
    assert supervised.lines(accepted, 2)[1] == "code 5"


def test_jobs_of_a_process_end_with_it(supervised):
    accepted, other = nested(supervised, b"end")

    assert supervised.end(accepted).exit_code == 0
    until_gone(other)


def test_jobs_of_a_process_end_when_it_is_killed(supervised):
    accepted, other = nested(supervised, b"wait")
    assert is_alive(other)

    supervised.client.kill(accepted.job_id)

    until_gone(other)


def test_a_process_gets_statuses_of_its_own_jobs_alone(supervised):
    accepted, _ = nested(supervised, b"wait")

    assert set(supervised.client.query()) == {accepted.job_id}
    assert set(supervised.statuses) == {accepted.job_id}


def test_a_channel_reaches_no_job_of_another(supervised):
    _, other = nested(supervised, b"wait")
    from fiber._agent.supervisor.journal import read_journal

    (job,) = [j for j in read_journal(supervised.folder).values() if j.parent is not None]
    supervised.client.kill(job.id)
    supervised.client.terminate(job.id, 0.0)

    # had it been heard, the signal would have come before this reply
    supervised.client.query()
    assert is_alive(other)


def test_statuses_are_returned_of_all_jobs_or_of_those_named(supervised):
    first, second = supervised.ready("wait"), supervised.ready("wait")

    assert set(supervised.client.query()) == {first.job_id, second.job_id}
    assert set(supervised.client.query(second.job_id, "unknown")) == {second.job_id}
    assert supervised.client.query(second.job_id)[second.job_id].state is JobState.RUNNING


def test_ids_are_unique_and_usable_as_file_names(supervised):
    ids = [supervised.submit("exit_with", b"\0").job_id for _ in range(20)]

    assert len(set(ids)) == 20
    assert all(len(each) == 8 and int(each, 16) >= 0 for each in ids)


def test_twenty_threads_submit_a_hundred_jobs(supervised):
    found = {}

    def submit(thread):
        for number in range(5):
            code = thread * 5 + number
            found[code] = supervised.submit("exit_with", bytes([code]))

    threads = [threading.Thread(target=submit, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {code: supervised.end(job).exit_code for code, job in found.items()} == {
        code: code for code in range(100)
    }


def test_a_peer_that_sends_a_supervisors_message_is_disconnected(supervised):
    supervised.client._connection._channel.sendall(encode(messages.Pong()))

    # the end of the master's channel is no proof of its death, and no reason to live either
    assert supervised.reasons.get(timeout=30)


def test_devices_of_a_kind_that_was_never_offered_are_named(supervised):
    with pytest.raises(UnknownDevicesError) as caught:
        supervised.submit("wait", resources=ResourceRequest(devices={"toy": 1, "gpu": 2}))

    assert caught.value.kinds == ("gpu", "toy")


def test_a_job_sees_the_devices_it_was_granted(toys, supervised):
    toys()
    accepted = supervised.submit("tell_environ", b"TOYS", resources=wants(2))

    supervised.end(accepted)
    assert supervised.log(accepted) == "TOYS T0,T1\n"


def test_a_job_waits_for_devices_in_its_turn(toys, supervised):
    toys()
    first = supervised.ready("wait", resources=wants(2))
    second = supervised.submit("tell_environ", b"TOYS", resources=wants(1))
    third = supervised.submit("tell_environ", b"TOYS", resources=wants(1))

    assert second.pids == ()
    pending = supervised.until(second, lambda s: s.state is JobState.PENDING)
    assert pending.reason == Reason(ReasonKind.UNSCHEDULABLE)
    assert pending.message == "waits for 1 toy, free now: 0 toy"
    supervised.client.kill(first.job_id)

    assert supervised.end(second).state is JobState.SUCCEEDED
    assert supervised.end(third).state is JobState.SUCCEEDED
    assert {supervised.log(second), supervised.log(third)} <= {"TOYS T0\n", "TOYS T1\n"}


def test_a_job_that_waits_can_be_ended(toys, supervised):
    toys()
    supervised.ready("wait", resources=wants(2))
    second = supervised.submit("wait", resources=wants(2))
    third = supervised.submit("wait", resources=wants(2))

    supervised.client.kill(second.job_id)
    supervised.client.terminate(third.job_id, 100.0)

    assert supervised.end(second).exit_code == -9
    assert supervised.end(third).exit_code == -15
    assert "before it was started" in supervised.end(third).message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_programs_ends_a_job_that_waits(toys, supervised, number):
    toys()
    supervised.ready("wait", resources=wants(2))
    waiting = supervised.submit("wait", resources=wants(1))

    supervised.client.signal(waiting.job_id, 0, number)

    assert supervised.end(waiting).exit_code == -number


def test_a_signal_to_one_process_of_a_job_that_waits_leaves_the_others(toys, supervised):
    toys()
    holder = supervised.ready("wait", resources=wants(2))
    waiting = supervised.submit("exit_with", b"\0\0", resources=wants(1), processes=2)

    supervised.client.signal(waiting.job_id, 1, signal.SIGKILL)
    supervised.client.kill(holder.job_id)

    assert supervised.end(waiting).exit_code == 0


def test_more_devices_than_there_are_is_refused_at_once(toys, supervised):
    toys()
    with pytest.raises(SubmitError, match="job 'wait' asks for 3 of 'toy' and this host has 2"):
        supervised.submit("wait", resources=wants(3))
    assert supervised.client.query() == {}


def test_devices_come_back_from_jobs_that_could_not_start(toys, supervised):
    toys()
    for _ in range(3):
        with pytest.raises(SubmitError, match="cannot run"):
            supervised.submit(["no-such-program"], resources=wants(2))

    assert supervised.run("exit_with", b"\0", resources=wants(2)).exit_code == 0


def test_a_job_that_waited_and_cannot_start_has_failed(toys, supervised):
    toys()
    first = supervised.ready("wait", resources=wants(2))
    second = supervised.submit(["no-such-program"], resources=wants(1))
    supervised.client.kill(first.job_id)

    status = supervised.end(second)

    assert status.reason == Reason(ReasonKind.START)
    assert "cannot run 'no-such-program'" in status.message


def test_a_provider_that_fails_is_the_reason(toys, supervised):
    toys("Broken")
    status = supervised.run("wait", resources=wants(1))

    assert status.reason == Reason(ReasonKind.START)
    assert status.message == "the toys are broken"


def test_all_jobs_end_while_others_wait(toys, supervised):
    toys()
    first = supervised.ready("wait", resources=wants(2))
    second = supervised.submit("wait", resources=wants(1))

    supervised.client.close()

    assert supervised.end(first).exit_code == -9
    assert supervised.end(second).exit_code == -9


def test_a_job_that_waits_for_a_device_has_ended_when_it_is_interrupted(toys, supervised):
    toys()
    first = supervised.ready("wait", resources=wants(2))
    second = supervised.submit("wait", resources=wants(1))

    assert supervised.client.interrupt(second.job_id)

    assert supervised.end(second).reason == Reason(ReasonKind.SIGNAL, signal.SIGINT)
    supervised.client.kill(first.job_id)
    supervised.end(first)
