"""Preparation data of children, beside what the stdlib itself would send."""

import logging
import multiprocessing
import multiprocessing.context
import os
import sys
import types
from importlib.machinery import ModuleSpec
from multiprocessing import process, spawn, util
from types import SimpleNamespace

import pytest

from commands import ran
from fiber._launch import preparation
from fiber._launch.preparation import Program, added_by_libraries, job_environment
from fiber._wire import codec
from fiber.model import BackendInfo, Capabilities


@pytest.fixture(autouse=True)
def _main_is_found_anew(monkeypatch):
    monkeypatch.setattr(codec, "_main_by_reference", None)


@pytest.fixture
def main(monkeypatch):
    """A ``__main__`` of the test's own."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    codec.set_main_by_reference(True)
    return module


@pytest.mark.parametrize(
    "path,spec",
    [
        ("script.py", None),
        ("/some/where/script.py", None),
        ("../script.py", None),
        (None, None),
        (None, ModuleSpec("package.program", None)),
    ],
)
def test_a_script_and_a_module_are_described_as_the_stdlib_does(main, monkeypatch, path, spec):
    chosen = vars(multiprocessing.context)["_default_context"]
    monkeypatch.setattr(chosen, "_actual_context", multiprocessing.get_context("spawn"))
    main.__file__, main.__spec__ = path, spec

    data = spawn.get_preparation_data("child 1")

    # choosing one is what ours does not do
    del data["start_method"]
    assert Program().prepare("child 1") == data


def test_what_a_library_adds_for_children_of_the_stdlib_goes_to_ours_and_chooses_no_start_method(
    monkeypatch,
):
    chosen = vars(multiprocessing.context)["_default_context"]
    monkeypatch.setattr(chosen, "_actual_context", None)
    assert added_by_libraries("child 1") == {}
    prepare = spawn.get_preparation_data
    # as coverage does
    monkeypatch.setattr(
        spawn, "get_preparation_data", lambda name: {**prepare(name), "stowaway": name}
    )

    assert added_by_libraries("child 1") == {"stowaway": "child 1"}
    assert chosen._actual_context is None


def test_where_the_script_is_stays_known_when_its_last_line_has_run(main):
    main.__file__ = "/some/where/script.py"
    program = Program()
    del main.__file__
    assert program.prepare("child 1")["init_main_from_path"] == "/some/where/script.py"

    # one that children cannot load is not sent
    codec.set_main_by_reference(False)
    assert not [key for key in program.prepare("child 1") if key.startswith("init_main")]


def test_the_path_of_the_program_and_the_level_of_the_packages_logger_are_sent(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("of.a.test")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(util, "_logger", logger)
    monkeypatch.setattr(util, "_log_to_stderr", True)

    data = Program().prepare("child 1")

    # an empty entry means where the program began
    assert data["sys_path"] == [process.ORIGINAL_DIR, "/elsewhere"]
    assert data["dir"] == str(tmp_path)
    assert data["log_level"] == logging.INFO
    assert data["log_to_stderr"] is True


def test_a_main_that_is_being_loaded_for_a_child_starts_no_process(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)

    with pytest.raises(RuntimeError, match="bootstrapping phase"):
        Program().prepare("child 1")


@pytest.fixture
def started(monkeypatch):
    """The environment of a program's start, of which the test changes something."""
    first = {"PATH": "/bin", "KEPT": "1", "HOME": "/root"}
    monkeypatch.setattr(preparation, "_initial", first)
    monkeypatch.setattr(preparation, "_inherited", first)
    changed = {"PATH": "/mine", "KEPT": "1", "HOME": "/mine", "NEW": "2", "SSH_AUTH_SOCK": "/s"}
    monkeypatch.setattr("os.environ", changed)
    return changed


def runtime(*, same_host, env=()):
    return SimpleNamespace(
        config=SimpleNamespace(env=env, to_environ=lambda: {"FIBER_CPU": "2"}),
        info=BackendInfo(
            name="b", load=lambda _: None, capabilities=Capabilities(same_host=same_host)
        ),
    )


@pytest.mark.parametrize(
    "same_host,env,expected",
    [
        (True, (), {"NEW": "2", "PATH": "/mine", "HOME": "/mine", "SSH_AUTH_SOCK": "/s"}),
        (False, (), {"NEW": "2"}),
        (False, ("PATH", "KEPT", "NONE"), {"NEW": "2", "PATH": "/mine", "KEPT": "1"}),
    ],
    ids=["this host", "another host, with its own path and home", "what is listed goes anywhere"],
)
def test_what_a_program_changed_goes_to_jobs(started, same_host, env, expected):
    found = job_environment(runtime(same_host=same_host, env=env))
    found.pop("PYTEST_CURRENT_TEST", None)
    assert found == {"FIBER_CPU": "2", "FIBER_BACKEND": "b", **expected}


PROGRAM = """
import os
os.environ["BEFORE"] = "1"
from types import SimpleNamespace
import fiber
os.environ["AFTER"] = "2"
from fiber._launch.preparation import job_environment
from fiber.model import BackendInfo
print(job_environment(SimpleNamespace(
    config=SimpleNamespace(env=(), to_environ=dict),
    info=BackendInfo(name="b", load=lambda _: None),
)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no record is kept")
def test_what_a_program_changed_before_its_first_use_of_fiber_counts_too():
    done = ran([sys.executable, "-c", PROGRAM], env={**os.environ, "THERE": "0"}, check=True)
    assert done.stdout.strip() == "{'BEFORE': '1', 'AFTER': '2', 'FIBER_BACKEND': 'b'}"


def test_a_process_of_another_host_passes_on_what_it_changed_itself(monkeypatch):
    monkeypatch.setattr(preparation, "_inherited", None)
    monkeypatch.setenv("GIVEN", "1")
    preparation.mark_inherited()
    monkeypatch.setenv("OWN", "2")
    found = job_environment(runtime(same_host=False))
    assert "GIVEN" not in found
    assert found["OWN"] == "2"
