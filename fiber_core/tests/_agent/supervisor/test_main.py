"""Steps of a supervisor process before it serves."""

import resource
import sys
import warnings
from pathlib import Path

import pytest

from fiber._agent.supervisor import orphans
from fiber._agent.supervisor.preload import preload


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_has_all_the_descriptors_it_may_have_and_jobs_have_the_usual(make):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        supervised = make()
        accepted = supervised.submit(["bash", "-c", "ulimit -Sn"])
        supervised.end(accepted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    limits = Path(f"/proc/{supervised.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3:5] == [str(hard), str(hard)]
    assert supervised.log(accepted) == f"{lower}\n"


def test_titles_fit_what_systems_show():
    assert len(orphans.SUPERVISOR_TITLE) <= 15
    assert len(orphans.DETACHED_TITLE) <= 15


def test_modules_are_imported_and_failures_returned(tmp_path, monkeypatch):
    (tmp_path / "preload_good.py").write_text("value = 1\n")
    (tmp_path / "preload_bad.py").write_text("raise ValueError('no')\n")
    (tmp_path / "preload_exit.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)

    with warnings.catch_warnings():
        failures = preload(["preload_bad", "preload_exit", "preload_missing", "preload_good"])

    assert sys.modules.pop("preload_good").value == 1
    assert failures["preload_bad"] == "ValueError: no"
    assert failures["preload_exit"] == "SystemExit: 3"
    assert "ModuleNotFoundError" in failures["preload_missing"]
    assert set(failures) == {"preload_bad", "preload_exit", "preload_missing"}
