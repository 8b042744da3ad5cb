"""A supervisor's life: it ends with its master, its work or on request, and leaves nothing.

SIGINT to its master's process group reaches the jobs in the foreground, and nothing else does; output of
jobs is on the master's own standard output and error.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import process_signals
from fiber._agent.supervisor.journal import read_journal
from fiber.model import JobSpec, Timing
from supervised import is_alive, masters, until_gone
from waiting import until
from wire_world import in_thread

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
    until(lambda: b"time.sleep(60)" in Path(f"/proc/{program.pid}/cmdline").read_bytes())

    assert all(map(is_alive, pids))
    program.kill()

    until_gone(*pids)
    assert not folder.exists()


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
    supervised.settle()
    supervised.process.send_signal(signal.SIGINT)

    assert supervised.run("exit_with", b"\3").exit_code == 3


def test_it_waits_for_its_first_job_and_stays_while_there_is_one(make):
    supervised = make(idle_exit=0.0)
    supervised.settle()
    accepted = supervised.ready("wait")
    supervised.settle()

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


def test_no_thread_watches_the_import_of_fibers_own_modules(make, tmp_path, monkeypatch):
    (tmp_path / "counts_threads.py").write_text(
        "import sys, threading\nthreads = threading.active_count()\n"
        "def main(private, index):\n    return sys.modules['counts_threads'].threads\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = JobSpec(run_id="0badcafe", name="count", argv=("x",), entry="counts_threads:main")
    codes = []
    for kind in ("essential", "preload"):
        supervised = make(**{kind: ("counts_threads",)})
        job = supervised.client.submit(spec, environ={}, cwd="/", on_accepted=lambda _: None)
        codes.append(supervised.end(job).exit_code)
    assert codes == [1, 2]


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
    supervised.settle()
    supervised.settle()
    assert count() <= before


#: the leader of a session and of its group, as a program is that a terminal runs
LEADER = """
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
def leader(tmp_path):
    """Runs a master that leads a group; returns it, with a pipe on which it can write."""
    with masters(tmp_path, LEADER, start_new_session=True) as start:
        yield start


def listener_of(supervised):
    """The process of a supervisor that stays in its master's group."""
    # it is there before anything is answered
    supervised.settle()
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    return process_signals.reporter_of(supervised.process.pid)


def test_those_in_the_foreground_are_interrupted_each_time_and_others_never(leader):
    master = leader(
        """
        front = supervised.submit("count_interrupts", b"2", foreground=True)
        back = supervised.submit("count_interrupts", b"1")
        for job in (front, back):
            supervised.lines(job, 1)
        report("ready")
        supervised.lines(front, 2)
        report("once", len(supervised.log(back).splitlines()))
        report(supervised.end(front).exit_code, supervised.statuses[back.job_id][-1].state.value)
        """
    )
    assert master.pipe.readline() == "ready\n"
    os.killpg(master.pid, signal.SIGINT)
    assert master.pipe.readline() == "once 1\n"
    os.killpg(master.pid, signal.SIGINT)
    assert master.pipe.readline() == "7 running\n"
    assert master.pipe.read() == "closed\n"


@contextlib.contextmanager
def late_report(supervised):
    """SIGINT was sent to the group; it is reported once the block has ended."""
    listener = listener_of(supervised)
    os.kill(listener, signal.SIGSTOP)
    os.kill(listener, signal.SIGINT)
    try:
        yield
    finally:
        # it ends with its supervisor
        with contextlib.suppress(ProcessLookupError):
            os.kill(listener, signal.SIGCONT)


def in_background(supervised, request):
    """Make a request in a thread; returns once the supervisor has it, with a way to its answer."""
    answer = in_thread(request)
    while not supervised.client._connection._pending:
        time.sleep(0.001)
    # requests are read in their order, and this one waits for nothing
    supervised.settle()
    return answer


@pytest.fixture
def patient(make):
    """A supervisor that waits for the answer of the process in the group until it goes on."""
    return make(timing=Timing(scale=30.0))


def test_a_request_waits_for_what_the_group_was_sent_before(patient):
    job = patient.ready("count_interrupts", b"1", foreground=True)
    with late_report(patient):
        answer = in_background(patient, lambda: patient.client.interrupt(job.job_id))

    assert answer() is False
    assert patient.end(job).exit_code == 7


def test_a_job_does_not_get_what_the_group_was_sent_before_it_and_does_not_wait_for_that(patient):
    with late_report(patient):
        answer = in_background(patient, lambda: patient.submit("wait", foreground=True))
        # it begins, while its submitter is not told of it
        until(lambda: list((patient.folder / "logs").glob("*.log")))
        assert patient.client._connection._pending

    job = answer()
    assert patient.client.interrupt(job.job_id), "it was interrupted before"
    assert patient.end(job).exit_code == 1


def test_a_job_of_which_nobody_was_told_ends_with_its_submitter(patient):
    with late_report(patient):
        submitter = patient.submit("submit_another", b"leave")
        patient.end(submitter)

    # where its request was read before its submitter had gone
    jobs = read_journal(patient.folder)
    del jobs[submitter.job_id]
    until_gone(*(process.pid for job in jobs.values() for process in job.processes))


@pytest.mark.parametrize("owns", [True, False], ids=["a master's", "another's"])
def test_a_job_of_which_nobody_was_told_ends_with_all_others(patient, owns):
    with late_report(patient):
        answer = in_background(patient, lambda: patient.submit("wait", foreground=True))
        # a process that is no master ends its own jobs only
        patient.client._owns = owns
        closed = in_thread(patient.client.close)
        if owns:
            until_gone(*answer().pids)
    closed()
    if not owns:
        until_gone(*answer().pids)


OTHERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


@pytest.mark.parametrize(
    "send, signals", [(os.kill, (signal.SIGINT,)), (os.killpg, OTHERS)], ids=["alone", "others"]
)
def test_a_signal_to_the_master_alone_or_another_one_to_its_group_reaches_no_job(
    leader, send, signals
):
    master = leader(
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


def test_one_that_is_starting_gets_it_once_it_runs(leader, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "slow_entry.py").write_text(
        textwrap.dedent(
            f"""
            import time
            with open({str(tmp_path / "fifo")!r}) as fifo:
                fifo.read()
            def main(private, index):
                while True:
                    time.sleep(0.05)
            """
        )
    )
    master = leader(
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


def test_the_death_of_the_whole_group_leaves_it_to_the_supervisor_to_end_the_jobs(leader):
    master = leader(
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


@pytest.mark.parametrize("ends", ["as it should", "by SIGKILL", "while that is stopped"])
def test_the_listener_ends_with_its_supervisor(own, ends):
    listener = listener_of(own)
    if ends == "while that is stopped":
        os.kill(listener, signal.SIGSTOP)
    if ends == "by SIGKILL":
        own.process.kill()
    else:
        own.client.close()
    until_gone(listener)


def test_without_room_for_a_listener_a_supervisor_says_so_and_ends():
    program = """
    import os
    from fiber._agent.supervisor.interrupts import fork_reporter, leave_group
    own, fork = os.getpid(), os.fork
    def fork_once():
        if os.getpid() != own:
            raise BlockingIOError("full")
        return fork()
    os.fork = fork_once
    leave_group(fork_reporter(0))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "no room for the process that reports interrupts" in ended.stderr


def test_only_leaving_the_group_waits_for_the_listener():
    program = """
    import os
    from fiber._agent.supervisor.interrupts import fork_reporter, leave_group
    goes_on, own, fork = os.pipe(), os.getpid(), os.fork
    def fork_later():
        if os.getpid() != own:
            os.read(goes_on[0], 1)
        return fork()
    os.fork = fork_later
    group = os.getpgid(0)
    reporter = fork_reporter(goes_on[1])
    assert os.getpgid(0) == group
    os.write(goes_on[1], b".")
    listener = leave_group(reporter)[2]
    assert os.getpgid(listener) == group != os.getpgid(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=50)


def test_the_listener_keeps_nothing_of_the_program_open(supervised):
    listener = listener_of(supervised)
    links = [str(link.readlink()) for link in Path(f"/proc/{listener}/fd").iterdir()]
    kinds = sorted(link.partition(":")[0] for link in links if link != os.devnull)
    assert kinds == ["pipe"] * 4


PIPED = """
supervised = Supervised(Path(sys.argv[1]))
{body}
supervised.client.close()
report("closed")
"""


@pytest.fixture
def piped(tmp_path):
    """Runs a master whose output is a pipe; returns it, and a pipe on which it can write."""
    with masters(tmp_path, PIPED, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as start:
        yield start


def test_output_comes_before_the_end_is_reported(piped):
    body = """
    for _ in range(20):
        supervised.run("tell", b"job\\n")
        os.write(1, b"end\\n")
    """
    out, _ = piped(body).communicate(timeout=50)

    assert out == b"job\nend\n" * 20


def test_a_reader_that_takes_nothing_delays_no_end(piped):
    # a pipe holds 64 KiB, and nobody reads this one until the program says that it is over
    body = """
    for _ in range(3):
        supervised.run("write_plenty", b"900")
    report("ended")
    """
    master = piped(body)

    assert master.pipe.readline() == "ended\n"
    out, _ = master.communicate(timeout=50)
    assert len(out) == 3 * 900 * 65


def test_a_reader_that_has_gone_does_no_harm(piped):
    body = """
    status = supervised.run("write_plenty", b"40000")
    report(status.exit_code)
    """
    master = piped(body)
    master.stdout.close()

    # a supervisor passes on what it can; its jobs write into pipes of its own
    assert master.pipe.readline() == "0\n"
