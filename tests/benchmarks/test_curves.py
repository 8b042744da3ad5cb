"""Every curve is measured and drawn, with so little to do that nothing is said of speed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from benchmarks import curves
from benchmarks.curves import evolution, point

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


def test_an_ideal_generation_is_that_of_workers_that_never_wait():
    alone, many = evolution.ideal(1, 0, 50), evolution.ideal(50, 0, 50)
    seconds = [evolution.seconds_of(seed) for seed in range(50)]

    assert alone == pytest.approx(sum(seconds))
    assert many == max(seconds)
    assert max(seconds) < evolution.ideal(7, 0, 50) < sum(seconds) / 7 + max(seconds)


@pytest.mark.parametrize(
    "module, seconds, told",
    [
        # starting a program takes longer than this
        ("benchmarks.curves.evolution", 0.001, "no answer within 0 s"),
        ("no_such_module", 50, "No module named 'no_such_module'"),
    ],
)
def test_a_point_that_fails_or_takes_too_long_is_told(module, seconds, told):
    with pytest.raises(point.PointError, match=told):
        point.measure(module, {}, seconds)
