"""The page on backends is what the kit found, and the kit was run on what is there now."""

import pytest

import backends_page
from fiber._plugins.manager import load_plugins

SUBJECTS = backends_page.subjects()


def test_the_page_is_made_of_the_results():
    assert backends_page.PAGE.read_text(encoding="utf-8") == backends_page.render(SUBJECTS), (
        "write it anew: python tests/support/backends_page.py > docs/reference/backends.md"
    )


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_the_kit_passed_and_what_is_declared_is_what_was_tested(subject):
    assert [test["name"] for test in subject.tests if test["outcome"] == "failed"] == []
    info = load_plugins().backends().get(subject.name)
    if info is None:
        pytest.skip(f"{subject.name} is not installed here")
    assert set(info.capabilities.names()) == subject.capabilities, (
        "run the kit again and commit its results in docs/reference/conformance"
    )


def test_each_capability_has_its_words():
    assert backends_page.missing_words() == set()
