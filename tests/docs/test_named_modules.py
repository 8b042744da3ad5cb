"""Files and modules that the documents name are there."""

import re
from pathlib import Path

import pytest

import layout

ROOT = Path(__file__).parents[2]
CORE = layout.CORE / "fiber"
TESTS = ROOT / "fiber_core" / "tests"
DOCUMENTS = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
MODULES = dict(layout.modules(*layout.SOURCES))
#: private modules and packages by their dotted names, and whatever is named behind them
DOTTED = re.compile(r"(?<![\w./-])(?:fiber\._\w+|fiber_(?:docker|k8s|local|ssh))(?:\.\w+)+")
#: a file or folder below the core's package, as the tables of the design pages name it
PATH = re.compile(r"`(_[a-z]+/[\w/]*(?:\.py)?|plugins/[\w/]+\.py)`")


def is_there(name):
    """True for a module, and for a name that a module defines."""
    if name in MODULES:
        return True
    module, _, attribute = name.rpartition(".")
    if module not in MODULES:
        return False
    text = MODULES[module].read_text(encoding="utf-8")
    return re.search(rf"\b{attribute}\b", text) is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_and_files_that_it_names_are_there(document):
    text = document.read_text(encoding="utf-8")
    gone = [name for name in DOTTED.findall(text) if not is_there(name)]
    gone += [
        path
        for path in PATH.findall(text)
        if not (any((above / path).exists() for above in (CORE, TESTS, ROOT)))
    ]

    assert gone == []


def test_a_module_that_is_gone_is_noticed():
    assert is_there("fiber._wire.frames")
    assert is_there("fiber._wire.handshake.Hello")
    assert not is_there("fiber._wire.ferry")
    assert not is_there("fiber._wire.frames.NoSuchName")
