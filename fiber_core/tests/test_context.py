"""Contexts: the names of start methods, the chosen one, and that of children."""

import copyreg
import io
import logging
import multiprocessing
import multiprocessing.context
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

import fiber
import fiber.context
from commands import ran
from fiber._agent.supervisor import preload
from fiber._base.interpreter import choose_start_method
from fiber.model import ResourceRequest
from waiting import PATIENCE

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]

METHODS = [
    name
    for name in multiprocessing.get_all_start_methods()
    if name in ("fork", "spawn", "forkserver")
]


@pytest.fixture(autouse=True)
def _nothing_chosen():
    choose_start_method(None)
    yield
    choose_start_method(None)


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


def told_by_child(target, context=fiber, **options):
    """A child of a context that has ended, and what it put into a queue."""
    results = context.SimpleQueue()
    child = context.Process(target=target, args=(results,), **options)
    child.start()
    told = results.get()
    child.join(PATIENCE)
    assert child.exitcode == 0
    return child, told


@pytest.mark.parametrize("method", [*METHODS, "fiber"])
def test_there_is_a_context_for_every_method_which_is_taken_where_a_name_is(method):
    context = fiber.get_context(method)

    assert multiprocessing.get_context(context) is context
    assert fiber.get_context(context) is context
    assert isinstance(context, multiprocessing.context.BaseContext)
    assert context.get_start_method() == method
    assert context.get_context() is context
    assert context.get_context("spawn") is fiber.get_context("spawn")
    assert issubclass(context.Process, fiber.Process)
    # it crosses as its name
    again = pickle.loads(pickle.dumps(context))
    assert again.get_start_method() == again.Process._start_method == method


def test_all_methods_are_named_with_the_default_first(monkeypatch):
    # as joblib does on Python 3.14
    theirs = [*multiprocessing.get_all_start_methods(), "loky"]
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: theirs)
    assert sorted(fiber.get_all_start_methods()) == sorted(METHODS)
    assert fiber.get_all_start_methods()[0] == fiber.get_start_method()


def test_a_method_is_chosen_for_fiber_alone_and_forgotten_by_force():
    before = multiprocessing.get_start_method(allow_none=True)
    fiber.set_start_method("fork")
    assert fiber.get_context() is fiber.get_context("fork")
    assert multiprocessing.get_start_method(allow_none=True) == before
    fiber.set_start_method(None, force=True)
    assert fiber.get_start_method(allow_none=True) is None


@pytest.mark.parametrize("choose", [fiber.get_start_method, lambda: fiber.set_start_method(None)])
def test_asking_for_the_method_and_choosing_none_choose_the_default(choose):
    with pytest.raises(ValueError, match="cannot find context"):
        fiber.set_start_method("teleport")
    assert fiber.get_start_method(allow_none=True) is None
    choose()
    assert fiber.get_start_method(allow_none=True) == "spawn"
    with pytest.raises(RuntimeError, match="context has already been set"):
        fiber.set_start_method("fork")


@pytest.mark.parametrize("method", METHODS)
def test_a_child_gets_the_start_method_and_the_stdlib_is_left_alone(method):
    child, told = told_by_child(tell_methods, fiber.get_context(method))
    assert told == (method, None, type(child).__name__, method)


def test_the_stdlib_knows_ours_by_a_name_of_its_own():
    assert multiprocessing.get_context("fiber") is fiber.get_context("fiber")
    assert type(multiprocessing.get_context("spawn")) is multiprocessing.context.SpawnContext
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        multiprocessing.get_context("thread")


def test_a_process_of_such_a_context_is_one_of_fibers_whose_name_is_in_its_log_records():
    context = multiprocessing.get_context(fiber.get_context())
    child, told = told_by_child(tell_name, context, name="ours")
    assert isinstance(child, fiber.Process)
    assert told == "ours"


def test_modules_are_preloaded_by_the_backend_once(monkeypatch):
    monkeypatch.setattr(preload, "_requested", [])
    seen, loaded = [], {}
    requests = preload.PreloadRequests(SimpleNamespace(preload=seen.append), loaded)
    for modules in (None, ["__main__", "decimal"], None, ["fractions"]):
        if modules is not None:
            fiber.set_forkserver_preload(modules)
        requests.send()
    assert seen == [("decimal",), ("fractions",)]
    # what a process needs for the objects that it is given
    for name in ("json", "fiber._objects.pipe", "fiber.connection", "fiber.pool"):
        loaded[name] = None
        requests.send()
    assert seen[2:] == [("fiber._objects.pipe",), ("fiber.connection",)]
    with pytest.raises(TypeError, match="must be a list of strings"):
        fiber.set_forkserver_preload([multiprocessing])


def test_libraries_of_the_main_module_are_preloaded_unless_others_are_asked_for(monkeypatch):
    monkeypatch.setattr(preload, "_requested", ["__main__"])
    seen, loaded, libraries = [], {}, ["numpy"]
    requests = preload.PreloadRequests(
        SimpleNamespace(preload=seen.append), loaded, main=lambda: libraries
    )
    jobs = [
        [SimpleNamespace(resources=ResourceRequest())],
        [SimpleNamespace(resources=ResourceRequest(cpu=1))],
    ]
    # a job with a number of CPUs sets that of its libraries' threads before it imports them
    for step, specs in enumerate((jobs[1], jobs[0], jobs[0]), 1):
        loaded[f"imported before {step}"] = None
        requests.send(specs)
    assert seen == [("numpy",)]
    libraries.append("torch")
    requests.send(jobs[0])
    assert len(seen) == 1, "nothing was imported since"
    # the supervisor does not find modules of other folders at the same place
    loaded["torch"] = None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, "/another"])
        requests.send(jobs[0])
    for modules in ([], ["decimal", "__main__"]):
        fiber.set_forkserver_preload(modules)
        requests.send(jobs[0])
    assert seen[1:] == [("decimal", "torch")]


PROGRAM = """
import os, sys
import fiber

def who():
    import preloaded_here
    return preloaded_here.loaded_by == os.getppid(), sys._xoptions.get("started_by")

if __name__ == "__main__":
    {choice}
    fiber.freeze_support()
    with fiber.Pool(1) as pool:
        print(*pool.apply(who))
"""


@pytest.mark.one_host("it sets a path of this host, and a hint that others may ignore")
@pytest.mark.parametrize(
    "choice,output",
    [
        ('fiber.set_forkserver_preload(["preloaded_here"])', "True None\n"),
        ('fiber.set_executable(os.path.abspath("python-of-ours"))', "False the-script\n"),
    ],
    ids=["a preloaded module", "another executable"],
)
def test_a_worker_begins_with_what_was_chosen(tmp_path, choice, output):
    (tmp_path / "preloaded_here.py").write_text("import os\nloaded_by = os.getpid()\n")
    (tmp_path / "program.py").write_text(PROGRAM.replace("{choice}", choice))
    script = tmp_path / "python-of-ours"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -X started_by=the-script "$@"\n')
    script.chmod(0o755)
    program = [sys.executable, "program.py"]
    done = ran(program, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (output, "")


DRAWING = """
import fiber

def draw():
    import numpy
    return numpy.random.random()

if __name__ == "__main__":
    fiber.set_forkserver_preload(["numpy.random"])
    with fiber.Pool(1, maxtasksperchild=1) as pool:
        print(len({pool.apply(draw) for _ in range(3)}), "numbers")
"""


@pytest.mark.one_host("a hint that others may ignore")
def test_workers_draw_different_numbers_where_numpy_was_preloaded(tmp_path):
    (tmp_path / "program.py").write_text(DRAWING)
    done = ran([sys.executable, "program.py"], cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("3 numbers\n", "")


def test_a_frozen_program_gets_an_error_that_says_what_it_lacks(monkeypatch):
    fiber.freeze_support()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(RuntimeError, match=r"call set_executable\(\)"):
        fiber.freeze_support()
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode("/opt/python"))
    fiber.freeze_support()


class Resource:
    """Has no pickle of its own."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        raise TypeError("cannot be pickled")


def test_what_pickles_cannot_be_replaced_and_is_extended(monkeypatch):
    monkeypatch.setattr("copyreg.dispatch_table", {})
    context = fiber.get_context("spawn")
    context.reducer = context.reducer
    with pytest.raises(ValueError, match=r"fiber.reduction.register\(\)"):
        context.reducer = object()
    assert context.reducer is fiber.reducer
    context.allow_connection_pickling()


@pytest.fixture
def _registered():
    fiber.reduction.register(Resource, lambda resource: (Resource, (resource.name,)))
    yield
    del copyreg.dispatch_table[Resource]


@pytest.mark.usefixtures("_registered")
def test_a_registered_type_goes_through_pools_and_queues_and_to_files():
    with fiber.Pool(1) as pool:
        assert pool.apply(lambda resource: resource.name, (Resource("one"),)) == "one"
    with fiber.SimpleQueue() as queue:
        queue.put(Resource("two"))
        assert queue.get().name == "two"
    reducer = fiber.reduction.AbstractReducer
    assert pickle.loads(reducer.ForkingPickler.dumps(lambda: 5))() == 5
    for protocol in (None, 4):
        made = reducer.ForkingPickler.dumps(Resource("three"), protocol)
        assert reducer.ForkingPickler.loads(made).name == "three"
        stream = io.BytesIO()
        reducer.dump(Resource("four"), stream, protocol)
        assert pickle.loads(stream.getvalue()).name == "four"


# libraries that hand what they are given to multiprocessing.get_context()


def test_the_names_of_the_platform_stay_what_they_are():
    program = """if True:
        import multiprocessing as mp
        before = mp.get_all_start_methods()
        import fiber
        process = fiber.get_context().Process(target=int)
        process.start()
        process.join()
        assert mp.get_all_start_methods() == before
        assert sorted(fiber.get_all_start_methods()) == sorted(before)
        assert mp.get_start_method(allow_none=True) is None
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=50)
