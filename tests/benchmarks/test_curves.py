"""Every curve is measured and drawn, with so little to do that nothing is said of speed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from benchmarks import curves

from commands import ran

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", curves.NAMES)
def test_a_curve_is_written_with_what_it_depends_on_and_drawn(name, tmp_path):
    words = ["-m", "benchmarks.curves", name, "--tiny", "--out", tmp_path]
    done = ran([sys.executable, *words], cwd=ROOT)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr

    found = json.loads((tmp_path / f"bench-{name}.json").read_text())
    about = found["machine"]
    assert about["command"][:3] == ["python", "-m", "benchmarks.curves"]
    assert about["versions"]["fiber-core"]
    assert {"cpus", "load_before", "load_after", "date"} <= set(about)
    assert "error" not in json.dumps(found)
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / f"bench-{name}.png").read_bytes().startswith(b"\x89PNG")
