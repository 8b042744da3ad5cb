"""Layouts of messages about locks and the like."""

import pytest

from fiber._objects.sync import protocol
from fiber._objects.sync.wait_queue import Status
from fiber.exceptions import WireError


def test_an_answer_is_read_as_it_was_written():
    for given in (
        (7, Status.OK, -3, ""),
        (2**64 - 1, Status.REFUSED_HOLDER_DIED, 0, "process 1 on höst"),
    ):
        assert protocol.parse_answer(protocol.answer(*given)) == given


@pytest.mark.parametrize(
    "body",
    [
        b"",
        protocol.answer(1, Status.OK, 0, "")[:-1],
        protocol.ANSWER.pack(64, 1, 200, 0),
        protocol.ANSWER.pack(64, 1, 0, 0) + b"\xff",
    ],
)
def test_nonsense_is_refused(body):
    with pytest.raises(WireError):
        protocol.parse_answer(body)
