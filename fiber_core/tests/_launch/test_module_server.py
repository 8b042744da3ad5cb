"""Modules from the parent: queries, answers, and how a module is loaded."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile

import pytest

from fiber._launch import module_server


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
    finder = module_server.ParentFinder(frozenset({name}), lambda _: json.dumps(answer).encode())
    spec = finder.find_spec(name, None)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_names_are_the_programs_and_not_pythons(odd):
    assert "odd_one" in module_server.own_names()
    assert not {"json", "pytest", "__main__"} & module_server.own_names()


def test_a_loaded_module_is_described_by_its_file(odd):
    assert module_server.describe("odd_one") == {
        "path": odd.__file__,
        "locations": None,
    }


def test_the_standard_library_is_not_offered():
    assert module_server.describe("json") == {}
    assert module_server.describe("no_such_module") == {}


def test_a_module_is_loaded_from_its_file_where_that_exists(odd):
    module = load("odd_one", module_server.describe("odd_one"))
    assert (module.VALUE, module.where()) == (7, odd.__file__)


def test_a_package_without_a_file_is_its_folders(tmp_path):
    (tmp_path / "inside.py").write_text("VALUE = 7\n")
    finder = module_server.ParentFinder(
        frozenset({"spread"}),
        lambda _: json.dumps({"path": None, "locations": [str(tmp_path)]}).encode(),
    )

    spec = finder.find_spec("spread", None)

    assert list(importlib.util.module_from_spec(spec).__path__) == [str(tmp_path)]


def test_a_module_whose_file_cannot_be_opened_is_not_found():
    answer = {"path": "/not/here/odd.zip/odd_one.py", "locations": None}
    finder = module_server.ParentFinder(
        frozenset({"odd_one"}), lambda _: json.dumps(answer).encode()
    )

    assert finder.find_spec("odd_one", None) is None


def test_the_source_of_a_module_inside_an_archive_is_had(tmp_path, monkeypatch):
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("odd_packed.py", "VALUE = 7\n")
    monkeypatch.syspath_prepend(str(archive))
    module = importlib.import_module("odd_packed")
    monkeypatch.setitem(sys.modules, "odd_packed", module)

    assert module_server.source_of("odd_packed") == "VALUE = 7\n"
    assert module_server.source_of("json") is None


def test_the_parent_is_not_asked_for_a_name_that_it_does_not_have():
    def ask(_):
        raise AssertionError("asked")

    finder = module_server.ParentFinder(frozenset({"ours"}), ask)
    assert finder.find_spec("theirs", None) is None


def test_a_parent_that_has_nothing_ends_the_search():
    finder = module_server.ParentFinder(frozenset({"ours"}), lambda _: b"{}")
    assert finder.find_spec("ours.part", None) is None
