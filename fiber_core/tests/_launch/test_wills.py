"""What children that are killed had noted is sent where they wanted."""

import json
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fiber._launch.child import Child
from fiber._launch.wills import TARGET, WillService, leave_will
from fiber._wire.frames import Kind, Message
from fiber.exceptions import PeerLostError
from fiber.model import JobState, JobStatus, ProcessStatus

WILL = {"urls": ["tls+tcp://gone", "tls+tcp://there"], "target": 7, "head": b"head".hex()}


class World:
    def __init__(self) -> None:
        self.child = Child("id", "name", Mock(), processes=2)
        self.sent, self.answers, self.arrived = [], [], threading.Event()
        launcher = SimpleNamespace(
            child_of=lambda ident: (self.child, 1) if ident == "id.1" else None
        )
        self.service = WillService(launcher, SimpleNamespace(endpoint=Mock(), client=self.client))

    def client(self, url):
        if url.endswith("gone"):
            raise PeerLostError

        def cast(target, body):
            self.sent.append((target, b"".join(body)))
            self.arrived.set()

        return SimpleNamespace(cast=cast)

    def asks(self, body, ident="id.1", auth_domain=None):
        def send(kind, target, number):
            self.answers.append((kind, target, number))

        peer = SimpleNamespace(ident=ident, auth_domain=auth_domain, send=send)
        self.service.on_message(peer, Message(Kind.CALL, TARGET, 5, memoryview(body)))

    def ends(self, state, noted):
        process = ProcessStatus(index=1, state=state, noted=noted)
        self.child.note_report(JobStatus(state=JobState.RUNNING, processes=(process,)))


@pytest.fixture
def world():
    return World()


def test_the_notes_of_one_that_fails_are_sent_to_the_first_address_that_answers(world):
    world.asks(json.dumps(WILL).encode())
    assert world.answers == [(Kind.REPLY, TARGET, 5)]
    world.ends(JobState.FAILED, b"noted")
    assert world.arrived.wait(20)

    assert world.sent == [(7, b"headnoted")]


@pytest.mark.parametrize("state, noted", [(JobState.SUCCEEDED, b"noted"), (JobState.FAILED, None)])
def test_nothing_is_sent_of_one_that_ends_well_or_of_which_nothing_is_known(world, state, noted):
    before = threading.active_count()
    world.asks(json.dumps(WILL).encode())
    world.ends(state, noted)

    assert threading.active_count() == before
    assert world.sent == []


@pytest.mark.parametrize(
    "body, who",
    [
        (json.dumps(WILL).encode(), {"ident": "stranger"}),
        (json.dumps(WILL).encode(), {"auth_domain": "another"}),
        (b"{", {}),
        (json.dumps({**WILL, "head": "no"}).encode(), {}),
        (json.dumps({**WILL, "urls": 1}).encode(), {}),
    ],
)
def test_others_and_nonsense_are_refused(world, body, who):
    world.asks(body, **who)
    assert world.answers == [(Kind.ERROR, TARGET, 5)]
    world.ends(JobState.FAILED, b"noted")

    assert world.sent == []


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_child_is_told_that_its_will_was_taken(is_taken):
    then, parent = Mock(), Mock()
    pending = parent.call.return_value
    if not is_taken:
        pending.result.side_effect = PeerLostError
    leave_will(parent, ("tls+tcp://there",), 7, b"head", then)
    (target, (body,)) = parent.call.call_args[0]
    assert target == TARGET
    assert json.loads(body) == {**WILL, "urls": ["tls+tcp://there"]}
    pending.add_done_callback.call_args[0][0](pending)

    assert then.called is is_taken
