"""Every capture, and every input that a parser once failed at, is read or refused as documented."""

import pytest
from fuzz.target import CORPUS, TARGETS, load_all

load_all()


def test_each_target_has_inputs_and_all_inputs_have_one():
    assert {path.parent.name for path in CORPUS.glob("*/*")} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_documented_errors_comes_of_an_input(name):
    for path in (CORPUS / name).iterdir():
        TARGETS[name](path.read_bytes())
