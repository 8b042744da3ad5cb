"""A program that users write, unchanged, in a plain pod with nothing set."""

import re
from pathlib import Path

import pytest

PI = Path(__file__).parents[4] / "examples" / "pi_estimation.py"

pytestmark = pytest.mark.timeout(400)

# Pool() makes a worker for each free CPU
CAPACITY = {"cpu": "6"}


def test_pi_is_estimated_by_a_pool(masters):
    code, lines = masters.wait(masters.start(PI.read_text(encoding="utf-8")))

    assert code == 0, lines
    assert re.search(r"3\.1[34]", "\n".join(lines)), lines
    masters.cluster.wait_until_gone()
