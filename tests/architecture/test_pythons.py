"""What is left to the main Python is there."""

from pathlib import Path

import pytest

import pythons

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", pythons.LEFT_OUT)
def test_what_is_left_out_exists(name):
    path, _, test = name.partition("::")

    assert (ROOT / path).exists()
    assert f"class {test}(" in (ROOT / path).read_text() if test else True
