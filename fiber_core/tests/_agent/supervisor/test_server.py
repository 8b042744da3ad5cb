"""A supervisor's life: it ends with its master, its work or on request, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervised import is_alive, masters, until_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MASTER = """
if __name__ == "__main__":
    supervised = Supervised(Path(sys.argv[1]), remove_directory=True)
    jobs = [supervised.ready("wait", processes=2), supervised.submit("with_grandchild")]
    nested = supervised.submit("submit_another", b"wait")
    grandchild = supervised.lines(jobs[1], 1)[0]
    other = supervised.lines(nested, 1)[0].split()[1]
    pids = [pid for job in [*jobs, nested] for pid in job.pids]
    report(supervised.process.pid, *pids, grandchild, other)
    {body}
"""


@pytest.fixture
def master(tmp_path):
    """Starts a program that has a supervisor; returns it with the processes of its run."""
    folder = tmp_path / "run"
    folder.mkdir()
    with masters(folder, MASTER, stdout=subprocess.DEVNULL) as start:

        def begin(body="time.sleep(60)"):
            program = start(body)
            pids = [int(word) for word in program.pipe.readline().split()]
            assert len(pids) == 7, "the master did not come up"
            return program, pids, folder

        yield begin


def test_the_masters_death_ends_everything_though_a_fork_of_it_holds_its_channel(master):
    program, pids, folder = master("report(os.fork() or time.sleep(60)); time.sleep(60)")
    helper = int(program.pipe.readline())
    assert all(map(is_alive, pids))

    program.kill()

    until_gone(*pids)
    assert not folder.exists()
    assert is_alive(helper)
    os.kill(helper, signal.SIGKILL)


def test_the_end_of_the_channel_is_no_proof_of_the_masters_death(master):
    # a program that executes another keeps its number, and closes the channel
    after = "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)'])"
    program, pids, folder = master(after)
    deadline = time.monotonic() + 20
    while b"time.sleep(60)" not in Path(f"/proc/{program.pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert all(map(is_alive, pids))
    program.kill()

    until_gone(*pids)
    assert not folder.exists()


def test_a_stopped_master_is_not_dead(master):
    program, pids, _ = master()
    program.send_signal(signal.SIGSTOP)
    os.waitpid(program.pid, os.WUNTRACED)

    # nothing tells that nothing happens: a moment longer than any lease of its client's
    time.sleep(0.3)

    assert all(map(is_alive, pids))
    program.send_signal(signal.SIGCONT)
    program.kill()
    until_gone(*pids)


def test_a_directory_with_detached_jobs_is_kept(master):
    program, pids, folder = master()
    (folder / "run.json").write_text('{"detached": true}')

    program.kill()

    until_gone(*pids)
    assert (folder / "jobs.jsonl").exists()


def test_the_end_on_request_ends_all_jobs(own):
    accepted = own.ready("ignore_signals", processes=2)
    nested = own.submit("submit_another", b"wait")
    other = int(own.lines(nested, 1)[0].split()[1])

    own.client.close()

    assert not is_alive(own.process.pid)
    assert not any(map(is_alive, (*accepted.pids, *nested.pids, other)))
    assert own.statuses[accepted.job_id][-1].exit_code == -9
    assert own.folder.exists()


def test_the_end_on_request_is_not_delayed_by_a_process_that_left_its_group(own):
    accepted = own.submit("with_stranger")
    own.end(accepted)
    stranger = int(own.lines(accepted, 1)[0])
    assert is_alive(stranger)

    own.client.close()

    assert not is_alive(stranger)


def test_sigterm_ends_it_in_order(own):
    accepted = own.ready("wait")

    own.process.terminate()

    assert own.end(accepted).exit_code == -9
    own.reasons.get(timeout=30)
    assert not is_alive(own.process.pid)
    until_gone(*accepted.pids)


def test_interrupts_of_the_terminal_are_not_for_it(supervised):
    supervised.client.query()
    supervised.process.send_signal(signal.SIGINT)

    assert supervised.run("exit_with", b"\3").exit_code == 3


def test_it_waits_for_its_first_job_and_stays_while_there_is_one(make):
    supervised = make(idle_exit=0.0)
    assert supervised.client.query() == {}
    accepted = supervised.ready("wait")
    supervised.client.query()

    assert is_alive(supervised.process.pid)
    supervised.client.kill(accepted.job_id)
    assert supervised.reasons.get(timeout=30) == ""
    assert supervised.process.wait(30) == 0


@linux
def test_its_process_title_is_set(supervised):
    assert Path(f"/proc/{supervised.process.pid}/comm").read_text() == "fiber-superv\n"


@linux
def test_it_never_opens_a_socket_beside_its_channels(make):
    supervised = make(preload=("fiber._runtime.bootstrap",))
    supervised.run("exit_with", b"\0")

    links = [str(link.readlink()) for link in Path(f"/proc/{supervised.process.pid}/fd").iterdir()]
    assert sum(link.startswith("socket:") for link in links) == 1
    assert len(list(Path(f"/proc/{supervised.process.pid}/task").iterdir())) == 1


@linux
def test_a_hundred_jobs_leak_no_descriptor(supervised):
    def count():
        return len(list(Path(f"/proc/{supervised.process.pid}/fd").iterdir()))

    supervised.run("tell", b"x\n")
    before = count()
    accepted = [supervised.submit("tell", b"x\n") for _ in range(100)]
    for each in accepted:
        assert supervised.end(each).exit_code == 0

    # the files of a job are closed right after its end was reported
    assert supervised.client.query() == {}
    assert supervised.client.query() == {}
    assert count() <= before
