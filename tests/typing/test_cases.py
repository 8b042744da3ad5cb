"""What type checkers tell users, as mypy sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import require
from commands import ran

CASES = Path(__file__).with_name("cases.py")
CONFIG = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.timeout(250)
@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_results_have_the_types_of_what_was_called_and_mistakes_are_told(version, tmp_path):
    require.need_module("mypy")

    done = ran(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", CONFIG),
            *("--follow-imports=silent", "--cache-dir", tmp_path, "--python-version", version),
            CASES,
        ],
        cwd=CONFIG.parent,
    )

    assert done.returncode == 0, done.stdout + done.stderr
