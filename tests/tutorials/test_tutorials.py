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
