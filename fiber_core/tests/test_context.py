"""Contexts: the names of start methods, the chosen one, and that of children."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.context
import os
import pickle
import signal
import subprocess
import sys

import pytest

import fiber
import fiber.context
from fiber._agent.supervisor import preload
from fiber._base import start_methods

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]

METHODS = [
    name
    for name in multiprocessing.get_all_start_methods()
    if name in ("fork", "spawn", "forkserver")
]


@pytest.fixture(autouse=True)
def _nothing_chosen():
    start_methods.choose(None)
    yield
    start_methods.choose(None)


# what children do


def tell_methods(results):
    results.put(
        (
            fiber.get_start_method(allow_none=True),
            multiprocessing.get_start_method(allow_none=True),
            type(fiber.current_process()).__name__,
            fiber.current_process()._start_method,
        )
    )


def tell_name(results):
    record = logging.getLogger("any").makeRecord("any", logging.INFO, "f", 1, "m", (), None)
    results.put(logging.Formatter("%(processName)s").format(record))


def square(number):
    return number * number


def be_interrupted(results):
    try:
        results.put("ready")
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(7)


def tell_logging(results):
    logger = fiber.get_logger()
    results.put((logger.level, len(logger.handlers)))


def told_by_child(target, context=fiber, **options):
    """A child of a context that has ended, and what it put into a queue."""
    results = context.SimpleQueue()
    child = context.Process(target=target, args=(results,), **options)
    child.start()
    told = results.get()
    child.join(30)
    assert child.exitcode == 0
    return child, told


# finding one


@pytest.mark.parametrize("method", [*METHODS, "fiber"])
def test_there_is_a_context_for_every_method_which_is_taken_where_a_name_is(method):
    context = fiber.get_context(method)

    assert multiprocessing.get_context(context) is context
    assert fiber.get_context(context) is context
    assert isinstance(context, multiprocessing.context.BaseContext)
    assert context.get_start_method() == method
    assert context.get_context() is context
    assert context.get_context("spawn") is fiber.get_context("spawn")
    assert context.Process._start_method == method
    assert issubclass(context.Process, fiber.Process)


@pytest.mark.parametrize("get", [fiber.get_context, multiprocessing.get_context])
def test_an_unknown_method_is_refused(get):
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        get("thread")


def test_a_concrete_context_keeps_its_method():
    with pytest.raises(ValueError, match="cannot set start method of concrete context"):
        fiber.get_context("spawn").set_start_method("fork")


def test_all_methods_are_named_with_the_default_first(monkeypatch):
    # as joblib does on Python 3.14
    theirs = [*multiprocessing.get_all_start_methods(), "loky"]
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: theirs)
    assert sorted(fiber.get_all_start_methods()) == sorted(METHODS)
    assert fiber.get_all_start_methods()[0] == fiber.get_start_method()


def test_a_context_crosses_as_its_name():
    again = pickle.loads(pickle.dumps(fiber.get_context("fork")))

    assert again.get_start_method() == "fork"
    assert again.Process is fiber.context.ForkProcess


# choosing one


def test_a_method_is_chosen_once():
    fiber.set_start_method("fork")

    assert fiber.get_start_method() == "fork"
    assert fiber.get_context() is fiber.get_context("fork")
    with pytest.raises(RuntimeError, match="context has already been set"):
        fiber.set_start_method("spawn")


def test_a_choice_may_be_forced_and_forgotten():
    fiber.set_start_method("fork")
    fiber.set_start_method("forkserver", force=True)
    assert fiber.get_start_method() == "forkserver"

    fiber.set_start_method(None, force=True)
    assert fiber.get_start_method(allow_none=True) is None


def test_asking_for_the_method_chooses_the_default():
    assert fiber.get_start_method(allow_none=True) is None
    assert fiber.get_start_method() == "spawn"
    with pytest.raises(RuntimeError, match="context has already been set"):
        fiber.set_start_method("fork")


def test_a_choice_that_is_unknown_changes_nothing_and_one_of_nothing_chooses_the_default():
    with pytest.raises(ValueError, match="cannot find context"):
        fiber.set_start_method("teleport")
    assert fiber.get_start_method(allow_none=True) is None
    fiber.set_start_method(None)
    assert fiber.get_start_method(allow_none=True) == "spawn"


def test_choices_of_ours_and_of_the_stdlib_are_apart():
    before = multiprocessing.get_start_method(allow_none=True)

    fiber.set_start_method("forkserver")

    assert multiprocessing.get_start_method(allow_none=True) == before


# what a context makes


@pytest.mark.parametrize("method", METHODS)
def test_a_child_gets_the_start_method_and_the_stdlib_is_left_alone(method):
    child, told = told_by_child(tell_methods, fiber.get_context(method))
    assert told == (method, None, type(child).__name__, method)


def test_a_child_of_the_package_gets_the_chosen_method():
    fiber.set_start_method("forkserver")
    assert told_by_child(tell_methods)[1] == ("forkserver", None, "Process", None)


def test_a_context_has_pools_queues_and_pipes():
    context = fiber.get_context("forkserver")

    with context.Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
    bounded = context.Queue(1)
    bounded.put("one")
    assert bounded.full()
    assert bounded.get() == "one"
    ours, theirs = context.Pipe()
    ours.send("hello")
    assert theirs.recv() == "hello"
    reader, writer = context.Pipe(duplex=False)
    writer.send_bytes(b"bytes")
    assert reader.recv_bytes() == b"bytes"
    for one in (bounded, ours, theirs, reader, writer):
        one.close()


def test_a_context_knows_processes_and_cpus():
    context = fiber.get_context("spawn")

    assert context.cpu_count() == fiber.cpu_count()
    assert context.current_process() is fiber.current_process()
    assert context.parent_process() is fiber.parent_process()
    assert context.active_children() == fiber.active_children()
    assert context.TimeoutError is multiprocessing.TimeoutError


def test_the_name_of_a_worker_is_in_its_log_records():
    assert told_by_child(tell_name, name="worker of ours")[1] == "worker of ours"


def test_logging_to_standard_error_is_asked_for_in_children_too():
    logger = fiber.get_logger()
    assert logger is multiprocessing.get_logger()
    level, handlers = logger.level, list(logger.handlers)
    try:
        fiber.log_to_stderr(logging.WARNING)
        assert told_by_child(tell_logging)[1] == (logging.WARNING, 1)
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        vars(multiprocessing.util)["_log_to_stderr"] = False


def test_a_child_is_interrupted_as_by_ctrl_c():
    results = fiber.SimpleQueue()
    child = fiber.Process(target=be_interrupted, args=(results,))
    child.start()
    assert results.get() == "ready"

    child.interrupt()

    child.join(30)
    assert child.exitcode == 7


# how children start


def test_modules_are_preloaded_by_the_backend_once(monkeypatch):
    monkeypatch.setattr(preload, "_requested", [])
    seen = []

    class Backend:
        def preload(self, modules):
            seen.append(modules)

    requests = preload.PreloadRequests(Backend())
    requests.send()
    fiber.set_forkserver_preload(["__main__", "decimal"])
    requests.send()
    requests.send()
    fiber.set_forkserver_preload(["fractions"])
    requests.send()

    assert seen == [("decimal",), ("fractions",)]


def test_preloaded_modules_have_names():
    with pytest.raises(TypeError, match="must be a list of strings"):
        fiber.set_forkserver_preload([multiprocessing])


def output_of(program, folder):
    """What a program writes, and what it writes to standard error."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout, done.stderr


PRELOADED = """
import os, sys
import fiber

def who():
    import preloaded_here
    return preloaded_here.loaded_by, os.getppid()

if __name__ == "__main__":
    fiber.set_forkserver_preload(["preloaded_here"])
    with fiber.Pool(1) as pool:
        loaded_by, parent = pool.apply(who)
    print(loaded_by == parent)
"""


@pytest.mark.one_host("a hint that others may ignore")
def test_a_preloaded_module_is_there_when_a_worker_begins(tmp_path):
    (tmp_path / "preloaded_here.py").write_text("import os\nloaded_by = os.getpid()\n")
    assert output_of(PRELOADED, tmp_path) == ("True\n", "")


WITH_ANOTHER_PYTHON = """
import os, sys
import fiber

def who():
    return sys._xoptions["started_by"]

if __name__ == "__main__":
    fiber.set_executable(os.path.abspath("python-of-ours"))
    fiber.freeze_support()
    with fiber.Pool(1) as pool:
        print(pool.apply(who))
"""


@pytest.mark.one_host("it sets a path of this host")
def test_children_start_with_the_executable_that_was_set(tmp_path):
    script = tmp_path / "python-of-ours"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -X started_by=the-script "$@"\n')
    script.chmod(0o755)
    assert output_of(WITH_ANOTHER_PYTHON, tmp_path) == ("the-script\n", "")


def test_a_frozen_program_gets_an_error_that_says_what_it_lacks(monkeypatch):
    fiber.freeze_support()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(RuntimeError, match=r"call set_executable\(\)"):
        fiber.freeze_support()
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode("/opt/python"))
    fiber.freeze_support()


def test_what_pickles_cannot_be_replaced_and_is_extended(monkeypatch):
    monkeypatch.setattr("copyreg.dispatch_table", {})
    context = fiber.get_context("spawn")
    context.reducer = context.reducer
    with pytest.raises(ValueError, match=r"fiber.reduction.register\(\)"):
        context.reducer = object()
    assert context.reducer is fiber.reducer
    context.allow_connection_pickling()


# libraries that hand what they are given to multiprocessing.get_context()


def test_the_stdlib_knows_ours_by_a_name_of_its_own():
    assert multiprocessing.get_context("fiber") is fiber.get_context("fiber")
    assert type(multiprocessing.get_context("spawn")) is multiprocessing.context.SpawnContext


def test_the_names_of_the_platform_stay_what_they_are():
    program = (
        "import multiprocessing as mp\n"
        "before = mp.get_all_start_methods()\n"
        "import fiber\n"
        "fiber.get_context()\n"
        "assert mp.get_all_start_methods() == before\n"
        "assert sorted(fiber.get_all_start_methods()) == sorted(before)\n"
        "assert mp.get_start_method(allow_none=True) is None\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=30)


def test_a_process_of_such_a_context_is_one_of_fibers():
    context = multiprocessing.get_context(fiber.get_context())
    child, told = told_by_child(tell_name, context, name="ours")
    assert isinstance(child, fiber.Process)
    assert told == "ours"
