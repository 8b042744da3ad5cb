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


def test_a_change_must_fit():
    assert tutorial.changed("a\nb\nc\n", " a\n-b\n+d\n+e\n c\n", "x") == "a\nd\ne\nc\n"
    with pytest.raises(AssertionError, match="x has 0 times:"):
        tutorial.changed("a\n", "-b\n", "x")


def test_a_command_that_fails_or_says_something_else_is_told(tmp_path):
    reader = tutorial.Reader(PAGES[0], tmp_path)

    with pytest.raises(AssertionError, match="false ended with 1"):
        reader._console("$ false\n")
    with pytest.raises(AssertionError, match="echo one does not print 'two'"):
        reader._console("$ echo one\ntwo\n")
    reader._console("$ echo one and two\none…two\n")
