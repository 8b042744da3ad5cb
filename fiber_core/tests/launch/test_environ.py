"""What a job gets of its parent's environment."""

from types import SimpleNamespace

import pytest

from fiber.launch import environ
from fiber.launch.environ import job_environment
from fiber.model import BackendInfo, Capabilities


@pytest.fixture
def started(monkeypatch):
    """The environment of a program's start, of which the test changes something."""
    monkeypatch.setattr(environ, "_at_first", {"PATH": "/bin", "KEPT": "1", "HOME": "/root"})
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
