"""Jobs whose place their platform takes away: SIGTERM to the supervisor, SIGKILL after a while."""

import os
import signal
import sys
from collections import Counter

import pytest

import fiber
from children import start
from pool_tasks import tell_and_wait
from remote_world import supervisor_of
from waiting import until

GRACE = 600.0


@pytest.fixture(autouse=True)
def _long_grace(remote_host):
    """A busy machine may take long to have another worker up."""
    remote_host.use(far_grace=GRACE)


class Ran:
    """Record of the tasks that were run, with their processes."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def note(self, word):
        with self.path.open("a") as file:
            file.write(f"{word} {os.getpid()}\n")

    def lines(self):
        return [line.split() for line in self.path.read_text().splitlines()]

    def counts(self):
        return Counter(word for word, _ in self.lines())

    def first(self, word):
        """Wait for the process that notes this word first."""
        until(lambda: self.counts()[str(word)])
        return next(int(pid) for found, pid in self.lines() if found == word)


def hold_at(ran, go, held, number):
    ran.note(number)
    if number == held:
        assert go.wait(60)
    return number


def hold_for_ever_once(ran):
    ran.note("try")
    if len(ran.lines()) == 1:
        signal.pause()
    return os.getpid()


def exit_when_told(queue):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    tell_and_wait(queue)


@pytest.fixture
def ran(tmp_path):
    return Ran(tmp_path / "ran")


def take_away(pid):
    """Signal a job as a platform does that takes its place away."""
    supervisor_of(pid).terminate()


def child_of(pool, pid):
    return next(process._popen for process in pool._pool if process.pid == pid)


def test_what_waits_behind_a_task_is_done_by_others_while_it_runs(ran):
    go = fiber.Event()
    with fiber.Pool(1) as pool:
        # so that many travel together
        pool.starmap(hold_at, [(ran, go, -1, "before")] * 200)
        result = pool.starmap_async(hold_at, [(ran, go, 0, number) for number in range(30)])
        take_away(ran.first("0"))
        until(lambda: len(ran.counts()) == 31)
        go.set()
        assert result.get(60) == list(range(30))
    counts = ran.counts()
    assert counts.pop("before") == 200
    assert set(counts.values()) == {1}


def sigterm(child):
    take_away(child.status.processes[0].pid)


def sigterm_twice(child):
    sigterm(child)
    until(lambda: child.status.draining)
    sigterm(child)


@pytest.mark.parametrize(
    "grace, act, options",
    [
        # the first death that counts would be the task's end
        pytest.param(1, sigterm, {"max_attempts": 1}, id="takes too long"),
        pytest.param(GRACE, sigterm_twice, {"max_attempts": 1}, id="second SIGTERM"),
        pytest.param(-1, sigterm, {}, id="grace unknown"),
        pytest.param(GRACE, lambda child: child.terminate(), {}, id="terminated by the program"),
    ],
)
def test_a_task_whose_worker_cannot_finish_it_runs_again(remote_host, ran, grace, act, options):
    remote_host.use(far_grace=grace)
    with fiber.Pool(1, **options) as pool:
        result = pool.apply_async(hold_for_ever_once, (ran,))
        first = ran.first("try")
        child = child_of(pool, first)
        act(child)
        assert result.get(60) != first
        assert child.returncode == -signal.SIGTERM
    assert ran.counts() == {"try": 2}


@pytest.mark.parametrize("target, code", [(tell_and_wait, -signal.SIGTERM), (exit_when_told, 5)])
def test_a_single_process_gets_sigterm_at_once(target, code):
    queue = fiber.Queue()
    process = start(target, queue)
    take_away(queue.get(timeout=60))
    process.join(60)
    assert process.exitcode == code
