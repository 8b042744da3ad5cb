"""Preparation data of children, beside what the stdlib itself would send."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.context
import subprocess
import sys
import textwrap
import types
from importlib.machinery import ModuleSpec
from multiprocessing import process, spawn, util

import pytest

from fiber._launch.preparation import Program
from fiber._wire import codec


@pytest.fixture(autouse=True)
def _main_is_found_anew():
    before = codec._main_by_reference
    codec.set_main_by_reference(None)
    yield
    codec.set_main_by_reference(before)


@pytest.fixture
def main(monkeypatch):
    """A ``__main__`` of the test's own."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    codec.set_main_by_reference(True)
    return module


@pytest.fixture
def data_of_the_stdlib(monkeypatch):
    chosen = vars(multiprocessing.context)["_default_context"]
    monkeypatch.setattr(chosen, "_actual_context", multiprocessing.get_context("spawn"))

    def data():
        data = spawn.get_preparation_data("child 1")
        # choosing one is what ours does not do
        del data["start_method"]
        return data

    return data


@pytest.mark.parametrize("path", ["script.py", "/some/where/script.py", "../script.py", None])
def test_a_script_is_described_as_the_stdlib_does(main, data_of_the_stdlib, path):
    main.__file__ = path

    assert Program().prepare("child 1") == data_of_the_stdlib()


def test_a_module_is_sent_by_its_name(main, data_of_the_stdlib):
    main.__spec__ = ModuleSpec("package.program", None)

    assert Program().prepare("child 1") == data_of_the_stdlib()


def test_a_main_that_children_cannot_load_is_not_sent():
    codec.set_main_by_reference(False)

    assert not [key for key in Program().prepare("child 1") if key.startswith("init_main")]


def test_an_empty_entry_of_the_path_means_where_the_program_began(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    monkeypatch.chdir(tmp_path)

    data = Program().prepare("child 1")

    assert data["sys_path"] == [process.ORIGINAL_DIR, "/elsewhere"]
    assert data["dir"] == str(tmp_path)


def test_the_level_of_the_packages_logger_is_sent(monkeypatch):
    logger = logging.getLogger("of.a.test")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(util, "_logger", logger)
    monkeypatch.setattr(util, "_log_to_stderr", True)

    data = Program().prepare("child 1")

    assert data["log_level"] == logging.INFO
    assert data["log_to_stderr"] is True


def test_a_main_that_is_being_loaded_for_a_child_starts_no_process(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)

    with pytest.raises(RuntimeError, match="bootstrapping phase"):
        Program().prepare("child 1")


def test_where_the_script_is_stays_known_when_its_last_line_has_run(main):
    main.__file__ = "/some/where/script.py"
    program = Program()
    del main.__file__

    assert program.prepare("child 1")["init_main_from_path"] == "/some/where/script.py"


def test_a_process_chooses_no_start_method_for_the_stdlib():
    program = """
        import multiprocessing
        import fiber

        process = fiber.Process(target=int)
        process.start()
        process.join()
        assert multiprocessing.get_start_method(allow_none=True) is None
        multiprocessing.set_start_method("spawn")
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=30)
