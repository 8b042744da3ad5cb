"""A ring that runs answers its user's other processes, and survives strangers."""

import socket
import tempfile
from pathlib import Path

import pytest

from fiber._ring.command_rings.control import Control, ask
from fiber.exceptions import FiberError


@pytest.fixture
def door():
    def refuse():
        msg = "not now"
        raise FiberError(msg)

    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        path = str(Path(folder, "ring.sock"))
        control = Control(
            path,
            {
                "status": lambda: {"phase": "running"},
                "suspend": refuse,
                "resize": lambda jobs: int(jobs) + 1,
            },
        )
        yield path
        control.close()
        assert not Path(path).exists()


def test_a_question_is_answered(door):
    assert ask(door, "status") == {"phase": "running"}
    assert Path(door).stat().st_mode & 0o777 == 0o600


def test_a_question_may_have_words(door):
    assert ask(door, "resize 4") == 5


@pytest.mark.parametrize(
    "word, told",
    [
        ("suspend", "not now"),
        ("dance", "does not know"),
        ("resize x", "invalid literal"),
        ("resize", "missing"),
    ],
)
def test_what_it_refuses_is_an_error_here(door, word, told):
    with pytest.raises(FiberError, match=told):
        ask(door, word)


def test_a_ring_that_is_gone_does_not_answer(tmp_path):
    with pytest.raises(FiberError, match="does not answer"):
        ask(str(tmp_path / "none"), "status")


def test_who_asks_nothing_disturbs_nobody(door):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(door)

    assert ask(door, "status") == {"phase": "running"}
