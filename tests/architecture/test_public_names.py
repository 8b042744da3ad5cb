"""What is public is written down; a name comes or goes on purpose only."""

import importlib
from pathlib import Path

import pytest

import public_names

RECORD = Path(__file__).with_name("public_names.txt")


def test_public_names_are_those_that_are_written_down():
    recorded = RECORD.read_text(encoding="utf-8").split()

    assert list(public_names.public_names()) == recorded, (
        "public names changed: if that is meant, write them down with `python "
        "tests/support/public_names.py > tests/architecture/public_names.txt`, and tell users in "
        "a changelog fragment"
    )


@pytest.mark.parametrize("module", public_names.existing())
def test_every_name_in_all_exists_and_is_listed_once(module):
    loaded = importlib.import_module(module)

    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert len(set(loaded.__all__)) == len(loaded.__all__)
