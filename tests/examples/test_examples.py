"""Every example runs as it stands, in a folder of its own, as a user would run it.

An example says in comments of its own how it is run here: ``# test: --generations 3`` gives its
arguments, ``# needs: torch`` a module that it cannot do without.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import require

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = [pytest.mark.examples, pytest.mark.timeout(300)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs(example, tmp_path):
    text = example.read_text(encoding="utf-8")
    for module in re.findall(r"^# needs: (\w+)", text, re.MULTILINE):
        require.need_module(module)
    runs = re.findall(r"^# test:(.*)$", text, re.MULTILINE) or [""]

    for arguments in runs:
        done = subprocess.run(
            [sys.executable, example, *shlex.split(arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "MPLBACKEND": "Agg"},
            timeout=280,
            check=False,
        )

        assert done.returncode == 0, f"{example.name}{arguments}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
