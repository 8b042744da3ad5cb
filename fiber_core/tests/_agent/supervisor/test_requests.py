"""Requests on channels: each reaches the jobs of its own process and no others."""

import pickle
import signal

import pytest

import supervised_entries
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.journal import read_journal
from fiber._agent.supervisor.messages import encode
from fiber.exceptions import SubmitError
from fiber.model import Device, JobState, Reason, ReasonKind, ResourceRequest
from making import making
from supervised import Supervised, is_alive, until_gone

DEVICES = [Device(kind="toy", id=f"T{i}", index=i) for i in range(2)]


@pytest.fixture
def toys(supervised):
    """Offers two toys, whose provider the supervisor itself must never import."""
    supervised.client.offer(DEVICES, {"toy": pickle.dumps(supervised_entries.Toys())})
    return supervised


def wants(count):
    return ResourceRequest(devices={"toy": count})


def nested(supervised, what):
    accepted = supervised.submit("submit_another", what)
    return accepted, int(supervised.lines(accepted, 1)[0].split()[1])


@pytest.mark.parametrize("end", ["end", "wait"])
def test_jobs_of_a_process_end_with_it_or_when_it_is_killed(supervised, end):
    accepted, other = nested(supervised, end.encode())
    if end == "wait":
        assert is_alive(other)
        supervised.client.kill(accepted.job_id)

    assert supervised.end(accepted).exit_code == (-signal.SIGKILL if end == "wait" else 0)
    until_gone(other)


def test_a_channel_hears_of_and_reaches_no_job_of_another(supervised):
    accepted, other = nested(supervised, b"wait")
    (job,) = [j for j in read_journal(supervised.folder).values() if j.parent == accepted.job_id]
    supervised.client.kill(job.id)
    supervised.client.terminate(job.id, 0.0)

    # had it been heard, the signal would have come before this reply
    supervised.settle()
    assert set(supervised.statuses) == {accepted.job_id}
    assert is_alive(other)


def test_a_peer_that_sends_a_supervisors_message_is_disconnected(own):
    own.client._connection._channel.sendall(encode(messages.Pong()))

    # the end of the master's channel is no proof of its death, and no reason to live either
    assert own.reasons.get(timeout=30)


def test_a_job_waits_for_devices_in_its_turn(toys):
    first = toys.ready("wait", resources=wants(2))
    second = toys.submit("tell_environ", b"TOYS", resources=wants(1))
    third = toys.submit("tell_environ", b"TOYS", resources=wants(1))

    assert second.pids == ()
    pending = toys.until(second, lambda s: s.state is JobState.PENDING)
    assert pending.reason == Reason(ReasonKind.UNSCHEDULABLE)
    assert pending.message == "waits for 1 toy, free now: 0 toy, held by wait"
    toys.client.kill(first.job_id)

    assert toys.end(second).state is JobState.SUCCEEDED
    assert toys.end(third).state is JobState.SUCCEEDED
    assert {toys.log(second), toys.log(third)} <= {"TOYS T0\n", "TOYS T1\n"}


def test_a_job_that_waits_is_told_when_others_have_what_it_waits_for(toys):
    first, _ = (toys.ready("wait", resources=wants(1)) for _ in range(2))
    waiting = toys.submit("wait", resources=wants(2))
    toys.until(waiting, lambda s: s.message.endswith("free now: 0 toy, held by wait and wait"))
    toys.client.kill(first.job_id)

    toys.until(waiting, lambda s: s.message.endswith("free now: 1 toy, held by wait"))


def test_a_job_gets_a_device_once_another_run_that_holds_it_is_killed(tmp_path):
    with making(Supervised, lambda supervised: supervised.client.close()) as make:
        runs = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            runs.append(make(tmp_path / name))
            runs[-1].client.offer(DEVICES, {"toy": pickle.dumps(supervised_entries.Toys())})
        one, other = runs
        one.ready("wait", resources=wants(2))
        waiting = other.submit("tell_environ", b"TOYS", resources=wants(1))
        other.until(waiting, lambda s: s.message.endswith("free now: 0 toy, held by run 0badcafe"))
        one.process.kill()

        assert other.end(waiting).state is JobState.SUCCEEDED
        assert other.log(waiting) in {"TOYS T0\n", "TOYS T1\n"}


@pytest.mark.parametrize(
    "end, signum",
    [
        (lambda client, job: client.kill(job), signal.SIGKILL),
        (lambda client, job: client.terminate(job, 100.0), signal.SIGTERM),
        (lambda client, job: client.signal(job, 0, signal.SIGTERM), signal.SIGTERM),
        (lambda client, job: client.signal(job, 0, signal.SIGKILL), signal.SIGKILL),
        (lambda client, job: client.interrupt(job), signal.SIGINT),
    ],
    ids=["kill", "terminate", "SIGTERM", "SIGKILL", "interrupt"],
)
def test_a_job_that_waits_can_be_ended(toys, end, signum):
    toys.ready("wait", resources=wants(2))
    waiting = toys.submit("wait", resources=wants(1))

    assert end(toys.client, waiting.job_id) in {None, True}

    status = toys.end(waiting)
    assert (status.exit_code, status.reason) == (-signum, Reason(ReasonKind.SIGNAL, signum))
    assert "before it was started" in status.message


def test_devices_come_back_from_jobs_that_could_not_start(toys):
    for _ in range(3):
        with pytest.raises(SubmitError, match="cannot run"):
            toys.submit(["no-such-program"], resources=wants(2))

    assert toys.run("exit_with", b"\0", resources=wants(2)).exit_code == 0


@pytest.mark.parametrize("program, code", [("no-such-program", 127), ("/", 126)])
def test_a_job_that_waited_and_cannot_start_has_failed(toys, program, code):
    first = toys.ready("wait", resources=wants(2))
    second = toys.submit([program], resources=wants(1))
    toys.client.kill(first.job_id)

    status = toys.end(second)

    assert (status.reason, status.exit_code) == (Reason(ReasonKind.START), code)
    assert f"cannot run {program!r}" in status.message
    assert JobState.RUNNING not in {one.state for one in toys.statuses[second.job_id]}


def test_all_jobs_end_while_others_wait(own):
    own.client.offer(DEVICES, {"toy": pickle.dumps(supervised_entries.Toys())})
    first = own.ready("wait", resources=wants(2))
    second = own.submit("wait", resources=wants(1))

    own.client.close()

    assert own.end(first).exit_code == -9
    assert own.end(second).exit_code == -9
