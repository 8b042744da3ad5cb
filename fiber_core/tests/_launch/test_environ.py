"""Variables that a job gets from its parent's environment."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fiber._launch import environ
from fiber._launch.environ import job_environment
from fiber.model import BackendInfo, Capabilities


@pytest.fixture
def started(monkeypatch):
    """The environment of a program's start, of which the test changes something."""
    first = {"PATH": "/bin", "KEPT": "1", "HOME": "/root"}
    monkeypatch.setattr(environ, "_initial", first)
    monkeypatch.setattr(environ, "_inherited", first)
    changed = {"PATH": "/mine", "KEPT": "1", "HOME": "/mine", "NEW": "2", "SSH_AUTH_SOCK": "/s"}
    monkeypatch.setattr("os.environ", changed)
    return changed


def runtime(*, same_host, env=()):
    return SimpleNamespace(
        config=SimpleNamespace(env=env, to_environ=lambda: {"FIBER_CPU": "2"}),
        info=BackendInfo(
            name="b", load=lambda _: None, capabilities=Capabilities(same_host=same_host)
        ),
    )


OURS = {"FIBER_CPU": "2", "FIBER_BACKEND": "b"}


@pytest.mark.usefixtures("started")
class TestEnvironments:
    def test_on_this_host_all_changes_are_meant(self):
        found = job_environment(runtime(same_host=True))
        found.pop("PYTEST_CURRENT_TEST", None)
        assert found == {
            **OURS,
            "PATH": "/mine",
            "HOME": "/mine",
            "NEW": "2",
            "SSH_AUTH_SOCK": "/s",
        }

    def test_another_host_keeps_its_own_path_and_home(self):
        assert job_environment(runtime(same_host=False)) == {**OURS, "NEW": "2"}

    def test_what_is_listed_goes_anywhere(self):
        found = job_environment(runtime(same_host=False, env=("PATH", "KEPT", "NONE")))
        assert found == {**OURS, "NEW": "2", "PATH": "/mine", "KEPT": "1"}


PROGRAM = """
import os
os.environ["BEFORE"] = "1"
from types import SimpleNamespace
import fiber
os.environ["AFTER"] = "2"
from fiber._launch.environ import job_environment
from fiber.model import BackendInfo
print(job_environment(SimpleNamespace(
    config=SimpleNamespace(env=(), to_environ=dict),
    info=BackendInfo(name="b", load=lambda _: None),
)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no record is kept")
def test_what_a_program_changed_before_its_first_use_of_fiber_counts_too():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "THERE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "{'BEFORE': '1', 'AFTER': '2', 'FIBER_BACKEND': 'b'}"


def test_a_process_of_another_host_passes_on_what_it_changed_itself(monkeypatch):
    monkeypatch.setattr(environ, "_inherited", None)
    monkeypatch.setenv("GIVEN", "1")
    environ.mark_inherited()
    monkeypatch.setenv("OWN", "2")
    found = job_environment(runtime(same_host=False))
    assert "GIVEN" not in found
    assert found["OWN"] == "2"
