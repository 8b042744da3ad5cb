"""A process of a job connects to its parent."""

import pytest

from fiber._agent import instructions
from fiber._wire.handshake import Credentials, Hello
from fiber.exceptions import HandshakeError, StartError, TransportError

REFUSED = HandshakeError("Python is 3.10 there")
REFUSED.proven = True


@pytest.mark.parametrize("work", [None, b"", b"pickled\n\x80\n"])
def test_they_arrive_as_they_were_sent_and_tell_no_secret(work):
    parent = None if work is None else Hello.mine("parent")
    given = make(parent=parent, work=work)
    assert instructions.Instructions.decode(given.encode()) == given
    assert repr(given.credentials.key) not in repr(given)
    assert "pickled" not in repr(given)


def make(**changes):
    return instructions.Instructions(
        **{
            "credentials": Credentials.new(),
            "urls": ("one", "two"),
            "ident": "id",
            "directory": "/run",
            "processes": 1,
            "max_frame": 2**20,
            **changes,
        }
    )


@pytest.fixture
def dial(monkeypatch):
    """Dials two addresses for some time; each attempt has one of these outcomes, then the last."""

    def dial(*outcomes, seconds=0.0):
        left, asked = list(outcomes), []

        def link(url, *_, **__):
            asked.append(url)
            outcome = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(instructions, "Link", link)
        return instructions.dial(make(dial_timeout=seconds), None), asked

    return dial


@pytest.mark.parametrize("error", [TransportError("nobody there"), HandshakeError("no answer")])
def test_a_parent_that_is_not_ready_is_dialled_again(dial, error):
    link, asked = dial(error, error, error, "link", seconds=60)
    assert (link, asked) == ("link", ["one", "two", "one", "two"])


@pytest.mark.parametrize(
    "error,raised,words",
    [
        (TransportError("nobody there"), StartError, "cannot reach the parent at one, two"),
        (HandshakeError("no answer"), HandshakeError, "no answer"),
    ],
)
def test_not_for_longer_than_its_time(dial, error, raised, words):
    with pytest.raises(raised, match=words):
        dial(error)


def test_a_refusal_of_the_parents_own_is_final(dial):
    with pytest.raises(HandshakeError, match=r"Python is 3\.10 there"):
        dial(REFUSED, "link", seconds=60)
