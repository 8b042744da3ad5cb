"""The tutorials are run as they are written: whoever follows one ends where it says."""

from pathlib import Path

import pytest

import tutorial

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_tutorial_works(page, tmp_path):
    tutorial.Reader(tmp_path).follow(page)


def test_a_change_must_fit():
    assert tutorial.changed("a\nb\nc\n", " a\n-b\n+d\n+e\n c\n", "x") == "a\nd\ne\nc\n"
    with pytest.raises(AssertionError, match="x has 0 times:"):
        tutorial.changed("a\n", "-b\n", "x")
    with pytest.raises(AssertionError, match="x has 2 times:"):
        tutorial.changed("a\na\n", "-a\n", "x")


def test_a_command_that_fails_or_says_something_else_is_told(tmp_path):
    reader = tutorial.Reader(tmp_path)

    with pytest.raises(AssertionError, match="false ended with 1"):
        reader._console("$ false\n")
    with pytest.raises(AssertionError, match="echo one does not print 'two'"):
        reader._console("$ echo one\ntwo\n")
    reader._console("$ echo one and two\none…two\n")
