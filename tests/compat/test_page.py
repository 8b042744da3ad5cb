"""The page on compatibility says what the tests have found."""

from pathlib import Path

import pytest

import compat_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"


@pytest.mark.skipif(not compat_page.is_for_this_python(), reason="the page is for one Python")
def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == compat_page.page(), (
        "write it anew with `python tests/support/compat_page.py > docs/reference/compatibility.md`"
    )
