"""Managers whose methods return at once, and what they return."""

import asyncio
import gc
import multiprocessing
import os
import sys
import threading

import pytest

import fiber
from children import finish, start
from commands import ran
from fiber.managers import AsyncManager, AsyncProxy, BaseProxy, gather

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(120),
]


class Simulator:
    def __init__(self, start=0):
        self._steps = start
        self._gate = threading.Event()

    def step(self, action):
        self._steps += 1
        return self._steps, action

    def wait(self):
        return self._gate.wait(60)

    def open(self):
        self._gate.set()

    def fail(self, text):
        raise LookupError(text)

    def pid(self):
        return os.getpid()

    def child(self):
        return Simulator(self._steps)


SHARED = []


def shared():
    """One and the same for all that a manager is asked for."""
    if not SHARED:
        SHARED.append(Simulator())
    return SHARED[0]


class Patient(AsyncProxy):
    _exposed_ = ("step",)

    def step(self, action):
        return self._callmethod("step", (action,))


class Hasty(BaseProxy):
    _exposed_ = ("step",)

    def step(self, action):
        return self._callmethod("step", (action,))


class Simulators(AsyncManager):
    pass


Simulators.register("Simulator", Simulator, method_to_typeid={"child": "Child"})
Simulators.register("Child", create_method=False)
Simulators.register("Patient", Simulator, Patient)
Simulators.register("Hasty", Simulator, Hasty)
Simulators.register("Shared", shared)


@pytest.fixture(scope="module")
def simulators(shared_runtime):
    with Simulators() as started:
        yield started


def test_an_unstarted_manager_starts_on_its_first_use():
    manager = Simulators()
    simulator = manager.Simulator()

    assert simulator.pid().get(60) == manager._process.pid != os.getpid()
    manager.shutdown()


def test_an_exception_is_raised_where_its_handle_is_read(simulators):
    simulator = simulators.Simulator()
    bad, good = simulator.fail("why"), simulator.step(0)

    assert good.get(60) == (1, 0)
    assert good.successful()
    assert not bad.successful()
    for _ in range(2):
        with pytest.raises(LookupError, match="why") as caught:
            bad.get()
        assert "raise LookupError(text)" in str(caught.value.__cause__)
    with pytest.raises(TypeError, match="cannot pickle"):
        simulator.step(threading.Lock())


def test_a_call_returns_before_its_method_does(simulators):
    waiting, other = simulators.Shared(), simulators.Shared()
    handle = waiting.wait()

    assert not handle.ready()
    assert not handle.wait(0.01)
    assert "of 'wait', waiting" in repr(handle)
    with pytest.raises(ValueError, match="not ready"):
        handle.successful()
    with pytest.raises(multiprocessing.TimeoutError):
        handle.get(0.01)
    # another object's calls do not wait for it
    other.open().get(60)
    assert handle.get(60) is True
    assert handle.ready()


def test_a_method_may_return_an_asynchronous_proxy(simulators):
    child = simulators.Simulator(5).child().get(60)

    assert isinstance(child, AsyncProxy)
    assert child.step("x").get(60) == (6, "x")


def test_one_that_is_never_read_is_let_go_of(simulators):
    simulator = simulators.Simulator()
    # what the tests before left
    gc.collect()
    before = simulators._number_of_objects()
    handle = simulator.child()
    handle.wait()
    assert simulators._number_of_objects() == before + 1
    del handle

    assert simulators._number_of_objects() == before


def test_an_unread_failure_is_logged(simulators, caplog):
    handle = simulators.Simulator().fail("x")
    handle.wait()
    del handle

    assert "a call of 'fail' failed, and nobody read its handle" in caplog.text


def use(simulator, results):
    results.put(simulator.step("far").get(60))


@pytest.mark.parametrize("kind", ["Simulator", "Patient"])
def test_another_process_uses_the_proxy_as_well(simulators, kind):
    simulator, results = getattr(simulators, kind)(), fiber.Queue()
    finish(start(use, simulator, results))

    assert results.get(timeout=20) == (1, "far")
    assert simulator.step("near").get(60) == (2, "near")
    assert simulators.Hasty().step(1) == (1, 1), "its type waits"


def test_many_handles_are_awaited_at_once(simulators):
    members = [simulators.Simulator(n) for n in range(4)]

    assert gather([m.step("a") for m in members]) == [(n + 1, "a") for n in range(4)]
    with pytest.raises(LookupError):
        gather([members[0].step("b"), members[1].fail("b")], 60)
    first, failed = gather([members[0].step("c"), members[1].fail("c")], 60, return_exceptions=True)
    assert first == (3, "c")
    assert isinstance(failed, LookupError)
    with pytest.raises(multiprocessing.TimeoutError):
        gather([members[0].step("d"), members[1].wait()], 0.05, return_exceptions=True)


def test_handles_are_awaited_in_asyncio(simulators):
    members = [simulators.Simulator(n) for n in range(3)]

    async def work():
        values = await asyncio.gather(*(m.step("a") for m in members))
        done = members[0].step("b")
        done.wait()
        with pytest.raises(LookupError):
            await members[1].fail("x")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(members[2].wait(), 0.01)
        return values, await done

    assert asyncio.run(work()) == ([(1, "a"), (2, "a"), (3, "a")], (2, "b"))


def test_an_await_that_is_cancelled_leaves_nothing_with_the_handle(simulators):
    member = simulators.Simulator()
    handle = member.wait()

    async def give_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle, 0.01)

    asyncio.run(give_up())

    assert handle._end._watchers == []


def test_a_program_that_awaits_nothing_does_not_import_asyncio():
    code = "import fiber.managers, sys; print('asyncio' in sys.modules)"
    assert ran([sys.executable, "-c", code], check=True).stdout.strip() == "False"


def test_the_text_of_a_proxy_does_not_wait_for_its_calls(simulators):
    simulator = simulators.Simulator()
    handle = simulator.wait()

    assert "Simulator object" in str(simulator)
    assert not handle.ready()
