"""Every row of the benchmarks runs, with so little to do that nothing is said of speed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from benchmarks import rows

from commands import ran

ROOT = Path(__file__).parents[2]
MODULES = {"bandwidth": "numpy", "broadcast": "numpy", "closure": "numpy"}


@pytest.mark.parametrize("name", rows.NAMES)
def test_a_row_measures_its_contenders(name, tmp_path):
    needed = MODULES.get(name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    found = tmp_path / "found.json"

    words = ["-m", "benchmarks", "--tiny", "--bars", "--rounds", "1", "--rows", name]
    done = ran([sys.executable, *words, "--json", found], cwd=ROOT)

    # 1 means that a bar was missed, which says nothing here
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
    results = json.loads(found.read_text())
    row = rows.load(name)
    metrics, judged = row.METRICS, {"fiber", "multiprocessing"}
    judged &= {*(row.CONTENDERS or judged)}
    assert list(results["metrics"]) == [metric.name for metric in metrics]
    for metric in metrics:
        one = results["metrics"][metric.name]
        for who in judged:
            (value,) = one["rounds"][who]
            assert value > 0
        assert len(one["bars"]) == len(metric.bars)
        assert metric.title in done.stdout
    assert results["machine"]["versions"]["fiber-core"]
