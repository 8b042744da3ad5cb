"""The control socket answers its user, and other clients are harmless."""

import socket
import tempfile
from pathlib import Path

import pytest

from fiber._ring.command_rings.control import ControlServer, request
from fiber.exceptions import FiberError


@pytest.fixture
def path():
    def refuse():
        msg = "not now"
        raise FiberError(msg)

    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        path = str(Path(folder, "ring.sock"))
        control = ControlServer(
            path,
            {
                "status": lambda: {"phase": "running"},
                "suspend": refuse,
                "resize": lambda jobs: int(jobs) + 1,
            },
            10.0,
        )
        yield path
        control.close()
        assert not Path(path).exists()


def test_a_command_is_answered(path):
    assert request(path, "status", 10.0) == {"phase": "running"}
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_command_may_have_arguments(path):
    assert request(path, "resize 4", 10.0) == 5


@pytest.mark.parametrize(
    "command, message",
    [
        ("suspend", "not now"),
        ("dance", "does not know"),
        ("resize x", "invalid literal"),
        ("resize", "missing"),
    ],
)
def test_a_refused_command_is_an_error(path, command, message):
    with pytest.raises(FiberError, match=message):
        request(path, command, 10.0)


def test_a_ring_that_is_gone_does_not_answer(tmp_path):
    with pytest.raises(FiberError, match="does not answer"):
        request(str(tmp_path / "none"), "status", 10.0)


def test_a_client_that_sends_nothing_is_harmless(path):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)

    assert request(path, "status", 10.0) == {"phase": "running"}
