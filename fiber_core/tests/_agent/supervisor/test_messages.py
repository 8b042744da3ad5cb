"""Frames: values of Fiber's own go through whole, in any pieces; nothing else does."""

import pickle
import signal
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.supervisor import messages
from fiber.exceptions import WireError
from fiber.model import (
    JobSpec,
    JobState,
    JobStatus,
    ProcessStatus,
    Reason,
    ReasonKind,
    ResourceRequest,
)

SPEC = JobSpec(
    run_id="0badcafe",
    name="näme",
    argv=("a", "b c"),
    env={"A": "\udcff"},
    unset_env=frozenset({"B"}),
    private=b"\x00secret",
    resources=ResourceRequest(cpu=0.5, devices={"gpu": 1}),
)
STATUS = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.EXIT, 7),
    processes=(ProcessStatus(index=0, state=JobState.FAILED, log_tail=("a",)),),
)
MESSAGES = [
    messages.Submit(number=1, spec=SPEC, environ={"A": "b"}, cwd="/"),
    messages.StatusChanged(job_id="a", status=STATUS),
    messages.Refused(number=2, kind=messages.RefusalKind.DEVICES, words="gpu"),
    messages.Done(number=3, words={"m": "w"}),
    messages.Ping(),
    messages.Exiting(),
]


def decoded(data):
    decoder = messages.Decoder()
    decoder.feed(data)
    return list(decoder.messages())


@given(st.lists(st.integers(1, 200), max_size=40))
def test_pieces_of_any_size_make_the_same_messages(sizes):
    data = b"".join(map(messages.encode, MESSAGES))
    decoder = messages.Decoder()
    found = []
    for size in [*sizes, len(data)]:
        decoder.feed(data[:size])
        data = data[size:]
        found += decoder.messages()

    # named tuples equal any tuple of the same values
    assert [(type(one), one) for one in found] == [(type(one), one) for one in MESSAGES]
    assert decoder.pending == 0


def test_a_value_that_is_not_fibers_is_refused_by_the_sender():
    message = messages.Signal(number=1, job_id="a", process=0, signum=signal.SIGKILL)

    with pytest.raises(WireError, match=r"Signal .* cannot be pickled: .*SIGKILL.* no plain value"):
        messages.encode(message)


@pytest.mark.parametrize("value", [object(), 1j, range(3), print, int, Path("/"), lambda: None])
def test_what_would_not_be_read_is_not_sent(value):
    spec = attrs.evolve(SPEC, labels={"a": value})

    with pytest.raises(WireError, match="cannot be pickled"):
        messages.encode(messages.Submit(number=1, spec=spec, environ={}, cwd="/"))


class Evil:
    def __reduce__(self):
        return (print, ("never",))


@pytest.mark.parametrize(
    "payload",
    [
        pickle.dumps(Evil()),
        pickle.dumps(print),
        pickle.dumps(pytest.fail),
        # a function of a module of ours is no value either
        b"cfiber._agent.supervisor.protocol\nencode\n.",
        b"cfiber._agent.supervisor.server\nos.system\n.",
        b"cbuiltins\ngetattr\n(cfiber.model.job\nJob\nV__init__\ntR.",
        b"not a pickle",
        b"",
    ],
)
def test_nothing_but_values_of_ours_is_made_of_a_frame(payload, capsys):
    with pytest.raises(WireError, match="cannot be read"):
        decoded(messages.HEADER.pack(len(payload)) + payload)
    assert capsys.readouterr().out == ""


def test_members_of_enums_are_read_as_every_python_writes_them():
    payload = b"cbuiltins\ngetattr\n(cfiber.model.job\nJobState\nVFAILED\ntR."

    assert decoded(messages.HEADER.pack(len(payload)) + payload) == [JobState.FAILED]


def test_a_frame_that_is_too_large_is_an_error_at_once_with_what_to_do(monkeypatch):
    with pytest.raises(WireError, match="announces"):
        decoded(messages.HEADER.pack(messages.MAX_FRAME + 1))
    monkeypatch.setattr(messages, "MAX_FRAME", 100)

    with pytest.raises(WireError, match=r"Submit of \d+ bytes .* queue or a pipe"):
        messages.encode(MESSAGES[0])


def test_secrets_are_in_no_repr():
    text = repr(MESSAGES[0])

    assert "secret" not in text
    assert "environ" not in text
