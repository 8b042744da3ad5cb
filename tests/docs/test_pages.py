"""Pages and pictures that are made of something say what that is now, and names in them are there."""

import importlib
import pkgutil
import pydoc
import re
import runpy
import sys
from pathlib import Path

import pytest

import backends_page
import contract_page
import layout
from fiber._plugins.manager import load_plugins

ROOT = Path(__file__).parents[2]
DESIGN = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
MODULES = dict(layout.modules(*layout.SOURCES))
#: private modules and packages by their dotted names, and whatever is named behind them
DOTTED = re.compile(r"(?<![\w./-])(?:fiber\._\w+|fiber_(?:docker|k8s|local|slurm|ssh))(?:\.\w+)+")
#: a file or folder below the core's package, as the tables of the design pages name it
PATH = re.compile(r"`(_[a-z]+/[\w/]*(?:\.py)?|plugins/[\w/]+\.py)`")
#: a picture in a page: the text in its place, and its file
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
SUBJECTS = backends_page.subjects()


def test_the_page_on_backends_is_made_of_the_results():
    assert backends_page.PAGE.read_text(encoding="utf-8") == backends_page.render(SUBJECTS), (
        "write it anew: python docs/generators/backends_page.py > docs/reference/backends.md"
    )
    assert backends_page.missing_words() == set()
    kit = "".join(path.read_text("utf-8") for path in layout.CORE.rglob("testing/**/*.py"))
    assert [what for part in backends_page.PARTS.values() for what in part if what not in kit] == []


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the page has the signatures as Python 3.11 shows them"
)
def test_the_contract_in_tables_is_made_of_the_sources():
    assert contract_page.PAGE.read_text(encoding="utf-8") == contract_page.page(), (
        "write it anew: python docs/generators/contract_page.py > docs/reference/contract.md"
    )


def test_a_field_of_the_contract_says_what_it_means():
    silent = [
        f"{name}.{field}"
        for name in contract_page.fiber.model.__all__
        for field, _, _, meaning in contract_page.fields_of(
            getattr(contract_page.fiber.model, name)
        )
        if not meaning
    ]

    assert silent == []


@pytest.mark.parametrize("package", ["fiber.abc", "fiber.model", "fiber.backend_parts"])
def test_help_shows_nothing_of_the_environment(package, monkeypatch):
    monkeypatch.setenv("KIT_SECRET", "a secret of this process")
    found = importlib.import_module(package)
    modules = [m.name for m in pkgutil.iter_modules(getattr(found, "__path__", ()), f"{package}.")]

    for module in (package, *modules):
        assert "a secret of this process" not in pydoc.plain(pydoc.render_doc(module)), module


def test_every_guide_and_tutorial_is_in_the_index_by_its_name():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^((?:guides|tutorials)/[\w-]+)$", index, re.MULTILINE))
    there = {
        f"{folder}/{path.stem}"
        for folder in ("guides", "tutorials")
        for path in (ROOT / "docs" / folder).glob("*.md")
    }

    assert listed == there, "name it in the group of docs/index.md where a reader looks for it"


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_the_kit_passed_and_what_is_declared_is_what_was_tested(subject):
    assert [test["name"] for test in subject.tests if test["outcome"] == "failed"] == []
    info = load_plugins().backends().get(subject.backend)
    if info is None:
        pytest.skip(f"{subject.backend} is not installed here")
    assert set(info.capabilities.names()) == subject.capabilities, (
        "run the kit again and commit its results in docs/reference/conformance"
    )


def test_a_picture_that_a_page_shows_is_there_and_its_text_says_what_is_seen():
    pages = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *ROOT.glob("docs/**/*.md")]
    shown = [
        (page.parent / path, text)
        for page in pages
        for text, path in PICTURE.findall(page.read_text(encoding="utf-8"))
    ]

    assert len({path.resolve() for path, _ in shown}) > 5
    assert [path for path, _ in shown if not path.is_file()] == []
    assert [text for _, text in shown if len(text.split()) < 4] == []


def test_the_picture_in_the_readme_is_the_one_that_its_script_draws():
    images = ROOT / "docs" / "images"
    drawn = runpy.run_path(str(images / "draw_architecture.py"))["draw"]()

    assert drawn == (images / "architecture.svg").read_text(encoding="utf-8")


def is_there(name):
    """True for a module, and for a name that a module defines."""
    if name in MODULES:
        return True
    module, _, attribute = name.rpartition(".")
    if module not in MODULES:
        return False
    text = MODULES[module].read_text(encoding="utf-8")
    return re.search(rf"\b{attribute}\b", text) is not None


@pytest.mark.parametrize("document", DESIGN, ids=lambda path: path.name)
def test_modules_and_files_that_a_document_names_are_there(document):
    text = document.read_text(encoding="utf-8")
    above = (layout.CORE / "fiber", ROOT / "fiber_core" / "tests", ROOT)
    gone = [name for name in DOTTED.findall(text) if not is_there(name)]
    gone += [path for path in PATH.findall(text) if not any((one / path).exists() for one in above)]

    assert gone == []


def test_each_changelog_fragment_is_where_a_release_looks_for_it():
    settings = (ROOT / "pyproject.toml").read_text()
    folders = re.findall(r'^path = "(\w+)"$', settings, re.MULTILINE)
    types = re.findall(r'^directory = "(\w+)"$', settings, re.MULTILINE)
    fragments = ROOT / "changelog.d"
    # a number at the end tells several of one number and type apart
    name = re.compile(rf"({'|'.join(folders)})/[\w+]+\.({'|'.join(types)})(\.\d+)?\.md")
    names = [path.relative_to(fragments).as_posix() for path in fragments.rglob("*.md")]
    assert names
    assert not [one for one in names if not name.fullmatch(one)]
