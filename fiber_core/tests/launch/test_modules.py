"""Modules from the parent: what is asked for, what is answered, how it is loaded."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from fiber.launch import modules


@pytest.fixture
def odd(tmp_path, monkeypatch):
    path = tmp_path / "odd_one.py"
    path.write_text("VALUE = 7\n\ndef where():\n    return __file__\n")
    spec = importlib.util.spec_from_file_location("odd_one", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "odd_one", module)
    return module


def load(name, answer):
    """Import a module that this process has not, from the given answer."""
    finder = modules.ParentFinder(frozenset({name}), lambda _: json.dumps(answer).encode())
    spec = finder.find_spec(name, None)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_names_are_the_programs_and_not_pythons(odd):
    assert "odd_one" in modules.own_names()
    assert not {"json", "pytest", "__main__"} & modules.own_names()


def test_a_loaded_module_is_described_by_its_file(odd):
    assert modules.describe("odd_one", with_source=False) == {
        "path": odd.__file__,
        "locations": None,
    }


def test_pythons_own_modules_are_not_told():
    assert modules.describe("json", with_source=True) == {}
    assert modules.describe("no_such_module", with_source=True) == {}


def test_a_module_is_loaded_from_its_file_where_that_exists(odd):
    module = load("odd_one", modules.describe("odd_one", with_source=False))
    assert (module.VALUE, module.where()) == (7, odd.__file__)


def test_a_module_is_loaded_from_its_source_where_the_file_is_not_here(odd):
    answer = {**modules.describe("odd_one", with_source=True), "path": "/not/here/odd_one.py"}
    module = load("odd_one", answer)
    assert (module.VALUE, module.where()) == (7, "/not/here/odd_one.py")


def test_nobody_is_asked_for_a_name_that_the_parent_has_not():
    def ask(_):
        raise AssertionError("asked")

    finder = modules.ParentFinder(frozenset({"ours"}), ask)
    assert finder.find_spec("theirs", None) is None


def test_a_parent_that_has_nothing_ends_the_search():
    finder = modules.ParentFinder(frozenset({"ours"}), lambda _: b"{}")
    assert finder.find_spec("ours.part", None) is None
