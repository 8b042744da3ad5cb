"""Workers that one step starts are told to the platform as jobs that are of use only together."""

from types import SimpleNamespace

import pytest

from fiber._ring.events import Go, StartWorker
from fiber._ring.member import Work
from fiber._ring.model import Group
from fiber._ring.workers import Hands
from fiber.exceptions import SubmitError
from fiber.model import Gang

WORK = Work(
    name="ring-7",
    function=print,
    initializer=None,
    initargs=(),
    framework=None,
    beat=1.0,
)
ONE = Group(workers=1)


class Launcher:
    """Notes what is asked of it, and refuses."""

    def __init__(self):
        self.gangs = []

    def launch(self, process, *, gang, **_):
        self.gangs.append(gang)
        raise SubmitError("no room")


class Owner:
    def not_launched(self, number, error):
        assert isinstance(error, SubmitError)


@pytest.fixture
def launcher():
    return Launcher()


@pytest.fixture
def hands(launcher):
    made = []

    def make(together):
        made.append(Hands(SimpleNamespace(launcher=launcher), WORK, Owner(), together))
        return made[-1]

    yield make
    for one in made:
        one.close()


def start(hands, *told):
    hands.gather(told)
    for one in told:
        if isinstance(one, StartWorker) and not one.group.is_caller:
            hands.launch(one)


@pytest.mark.usefixtures("shared_runtime")
def test_those_of_a_step_are_a_gang_and_those_of_the_next_another(hands, launcher):
    started = hands(60.0)

    start(started, StartWorker(1, 0, ONE), Go(1), StartWorker(2, 1, ONE))
    start(started, StartWorker(3, 0, ONE))

    first = Gang(name="ring-7-1", size=2, timeout=60.0)
    assert launcher.gangs == [first, first, Gang(name="ring-7-3", size=1, timeout=60.0)]


@pytest.mark.usefixtures("shared_runtime")
def test_the_caller_is_no_job_of_the_gang(hands, launcher):
    caller = Group(workers=1, is_caller=True)

    start(hands(60.0), StartWorker(1, 0, caller), StartWorker(2, 1, ONE))

    assert [gang.size for gang in launcher.gangs] == [1]


@pytest.mark.usefixtures("shared_runtime")
def test_where_some_are_enough_there_is_no_gang(hands, launcher):
    start(hands(None), StartWorker(1, 0, ONE), StartWorker(2, 1, ONE))

    assert launcher.gangs == [None, None]
