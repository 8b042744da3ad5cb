"""Modules are imported before the first fork, as far as they can be."""

import sys
import warnings

from fiber._agent.supervisor.preload import preload


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
