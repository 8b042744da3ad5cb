"""Workers that one step starts are one gang for the platform."""

from types import SimpleNamespace

import pytest

from fiber._ring.events import StartRun, StartWorker
from fiber._ring.member import MemberSpec
from fiber._ring.model import Group
from fiber._ring.timing import RingTiming
from fiber._ring.workers import JobThreads
from fiber.exceptions import SubmitError
from fiber.model import Gang

WORK = MemberSpec(
    name="ring-7",
    function=print,
    initializer=None,
    initargs=(),
    framework=None,
    heartbeat_interval=1.0,
    timing=RingTiming(),
)
ONE = Group(workers=1)


class Launcher:
    """Records gangs and refuses every job."""

    def __init__(self):
        self.gangs = []

    def launch(self, process, *, gang, **_):
        self.gangs.append(gang)
        raise SubmitError("no room")


class JobListener:
    def not_launched(self, number, error):
        assert isinstance(error, SubmitError)


@pytest.fixture
def launcher():
    return Launcher()


@pytest.fixture
def job_threads(launcher):
    made = []

    def make(gang_timeout):
        made.append(
            JobThreads(SimpleNamespace(launcher=launcher), WORK, JobListener(), gang_timeout)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def start(job_threads, *command):
    job_threads.assign_gangs(command)
    for one in command:
        if isinstance(one, StartWorker) and not one.group.is_caller:
            job_threads.launch(one)


@pytest.mark.usefixtures("shared_runtime")
def test_those_of_a_step_are_a_gang_and_those_of_the_next_another(job_threads, launcher):
    started = job_threads(60.0)

    start(started, StartWorker(1, 0, ONE), StartRun(1), StartWorker(2, 1, ONE))
    start(started, StartWorker(3, 0, ONE))

    first = Gang(name="ring-7-1", size=2, timeout=60.0)
    assert launcher.gangs == [first, first, Gang(name="ring-7-3", size=1, timeout=60.0)]


@pytest.mark.usefixtures("shared_runtime")
def test_the_caller_is_no_job_of_the_gang(job_threads, launcher):
    caller = Group(workers=1, is_caller=True)

    start(job_threads(60.0), StartWorker(1, 0, caller), StartWorker(2, 1, ONE))

    assert [gang.size for gang in launcher.gangs] == [1]


@pytest.mark.usefixtures("shared_runtime")
def test_an_elastic_ring_is_no_gang(job_threads, launcher):
    start(job_threads(None), StartWorker(1, 0, ONE), StartWorker(2, 1, ONE))

    assert launcher.gangs == [None, None]
