"""The tutorials are run as they are written: whoever follows one ends where it says."""

from pathlib import Path

import pytest

import tutorial

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))


STEPS = [(page, title) for page in PAGES for title, _ in tutorial.sections(page)]


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """A reader for each page, who goes on from test to test."""
    return {page: tutorial.Reader(page, tmp_path_factory.mktemp(page.stem)) for page in PAGES}


@pytest.mark.timeout(380)
@pytest.mark.parametrize("page, title", STEPS, ids=[f"{page.stem}: {t}" for page, t in STEPS])
def test_a_tutorial_works(readers, page, title):
    readers[page].follow(title)


@pytest.mark.timeout(380)
def test_a_backend_of_an_afternoon_is_as_short_as_its_tutorial_says(readers):
    page = next(page for page in PAGES if page.stem == "backend")
    readers[page].follow(tutorial.sections(page)[-1][0])
    sources = list(readers[page].folder.rglob("src/**/*.py"))
    assert sources
    assert sum(len(path.read_text().splitlines()) for path in sources) <= 350
