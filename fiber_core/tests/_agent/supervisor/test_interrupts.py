"""SIGINT to the program's process group reaches the jobs in its foreground, and nothing else does."""

import os
import signal
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from fiber.model import Timing
from supervised import masters, until_gone

#: the leader of a session and of its group, as a program is that a terminal runs
MASTER = """
from fiber.model import JobSpec

# a handler runs once the main thread does, which may have begun to wait: this is written at once
heard, tell = os.pipe()
os.set_blocking(tell, False)
signal.set_wakeup_fd(tell)
def expect(*signals):
    for signum in signals:
        signal.signal(signum, lambda *_: None)
def until_heard(*signals):
    missing = set(signals)
    while missing:
        missing -= set(os.read(heard, 100))
expect(signal.SIGINT)
supervised = Supervised(Path(sys.argv[1]))
{body}
supervised.client.close()
report("closed")
"""


@pytest.fixture
def program(tmp_path):
    """Runs a master that leads a group; returns it, with a pipe on which it can write."""
    with masters(tmp_path, MASTER, start_new_session=True) as start:
        yield start


def listener_of(supervised):
    """The process of a supervisor that stays in its master's group."""
    # it is there before anything is answered
    supervised.client.query()
    children = psutil.Process(supervised.process.pid).children()
    (found,) = (child.pid for child in children if os.getsid(child.pid) == os.getsid(0))
    return found


def test_those_in_the_foreground_are_interrupted_each_time_and_others_never(program):
    master = program(
        """
        front = supervised.submit("count_interrupts", b"2", foreground=True)
        back = supervised.submit("count_interrupts", b"1")
        for job in (front, back):
            supervised.lines(job, 1)
        report("ready")
        supervised.lines(front, 2)
        report("once", len(supervised.log(back).splitlines()))
        report(supervised.end(front).exit_code, supervised.client.query()[back.job_id].state.value)
        """
    )
    assert master.pipe.readline() == "ready\n"
    os.killpg(master.pid, signal.SIGINT)
    assert master.pipe.readline() == "once 1\n"
    os.killpg(master.pid, signal.SIGINT)
    assert master.pipe.readline() == "7 running\n"
    assert master.pipe.read() == "closed\n"


def test_a_request_waits_for_what_the_group_was_sent_before(make):
    # so that the answer of the process in the group is waited for until it goes on
    supervised = make(timing=Timing(scale=30.0))
    job = supervised.ready("count_interrupts", b"1", foreground=True)
    listener = listener_of(supervised)
    os.kill(listener, signal.SIGSTOP)
    os.kill(listener, signal.SIGINT)
    sent = []
    asking = threading.Thread(target=lambda: sent.append(supervised.client.interrupt(job.job_id)))
    asking.start()
    while not supervised.client._connection._pending:
        time.sleep(0.001)
    # requests are carried out in their order
    supervised.client.query()

    os.kill(listener, signal.SIGCONT)

    asking.join(30)
    assert sent == [False]
    assert supervised.end(job).exit_code == 7


OTHERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


@pytest.mark.parametrize(
    "send, signals", [(os.kill, (signal.SIGINT,)), (os.killpg, OTHERS)], ids=["alone", "others"]
)
def test_a_signal_to_the_master_alone_or_another_one_to_its_group_reaches_no_job(
    program, send, signals
):
    master = program(
        f"""
        signals = {list(map(int, signals))}
        expect(*signals)
        job = supervised.ready("wait", foreground=True)
        report("ready")
        until_heard(*signals)
        report(supervised.client.interrupt(job.job_id), supervised.end(job).exit_code)
        """
    )
    assert master.pipe.readline() == "ready\n"
    for number in signals:
        send(master.pid, number)
    assert master.pipe.read() == "True 1\nclosed\n"


def test_one_that_is_starting_gets_it_once_it_runs(program, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "slow_entry.py").write_text(
        textwrap.dedent(
            f"""
            import signal
            with open({str(tmp_path / "fifo")!r}) as fifo:
                fifo.read()
            def main(private, index):
                signal.pause()
            """
        )
    )
    master = program(
        """
        spec = JobSpec(
            run_id="0badcafe", name="slow", argv=("x",), entry="slow_entry:main", foreground=True
        )
        job = supervised.client.submit(
            spec, environ=dict(os.environ), cwd="/", on_accepted=lambda _: None
        )
        report("submitted")
        until_heard(signal.SIGINT)
        report(supervised.client.interrupt(job.job_id))
        open(sys.argv[1] + "/fifo", "w").close()
        report(supervised.end(job).reason)
        """
    )
    assert master.pipe.readline() == "submitted\n"
    os.killpg(master.pid, signal.SIGINT)
    assert master.pipe.read() == "False\nEXIT(1)\nclosed\n"


def test_the_death_of_the_whole_group_leaves_it_to_the_supervisor_to_end_the_jobs(program):
    master = program(
        """
        job = supervised.ready("with_grandchild", foreground=True)
        report(supervised.process.pid, *job.pids, supervised.log(job))
        signal.pause()
        """
    )
    pids = [int(word) for word in master.pipe.readline().split()]
    os.killpg(master.pid, signal.SIGKILL)
    until_gone(*pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_with_its_listener_killed_or_stopped_a_supervisor_goes_on(own, number):
    job = own.ready("wait", foreground=True)
    listener = listener_of(own)
    os.kill(listener, number)
    if number == signal.SIGKILL:
        until_gone(listener)
    assert own.client.interrupt(job.job_id)
    assert not own.client.interrupt(job.job_id)
    assert own.end(job).exit_code == 1


@pytest.mark.parametrize("ends", ["as it should", "by SIGKILL"])
def test_the_listener_ends_with_its_supervisor(own, ends):
    listener = listener_of(own)
    if ends == "by SIGKILL":
        own.process.kill()
    else:
        own.client.close()
    until_gone(listener)


def test_the_listener_keeps_nothing_of_the_program_open(supervised):
    listener = listener_of(supervised)
    links = [str(link.readlink()) for link in Path(f"/proc/{listener}/fd").iterdir()]
    kinds = sorted(link.partition(":")[0] for link in links if link != os.devnull)
    assert kinds == ["pipe"] * 4
