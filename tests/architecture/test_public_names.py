"""What is public is written down; a name comes or goes on purpose only."""

import importlib
from collections import Counter
from pathlib import Path

import public_names

RECORD = Path(__file__).with_name("public_names.txt")


def test_public_names_are_those_that_are_written_down():
    recorded = RECORD.read_text(encoding="utf-8").split()

    assert list(public_names.public_names()) == recorded, (
        "public names changed: if that is meant, write them down with `python "
        "tests/support/public_names.py > tests/architecture/public_names.txt`, and tell users in "
        "a changelog fragment"
    )


def test_every_name_in_all_exists_and_is_listed_once():
    wrong = []
    for module in public_names.PUBLIC_MODULES:
        loaded = importlib.import_module(module)
        listed = Counter(loaded.__all__)
        wrong += [f"{module}.{name}" for name in listed if not hasattr(loaded, name)]
        wrong += [f"{module}.{name} twice" for name, times in listed.items() if times > 1]

    assert not wrong, "\n".join(wrong)
