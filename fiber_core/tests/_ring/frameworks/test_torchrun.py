"""The rendezvous backend by which the torchruns in a ring's members find each other."""

import struct
import types
from importlib.metadata import entry_points

import pytest

from fiber._ring.frameworks import torchrun
from fiber._ring.frameworks.torchrun import VersionedState


def ask(state, version=None, new=b""):
    """Send a request of torchrun: returns whether the state was replaced, version and state."""
    answer = state.answer(struct.pack("<?Q", version is not None, version or 0) + new)
    is_set, found = struct.unpack_from("<?Q", answer)
    return is_set, found, answer[9:]


def test_torchrun_finds_the_backend():
    (found,) = entry_points(group="torchrun.handlers", name=torchrun.NAME)

    assert callable(found.load()())


def test_a_state_is_replaced_only_with_the_last_version():
    state = VersionedState()

    assert ask(state) == (False, 0, b"")
    assert ask(state, 0, b"a") == (True, 1, b"a")
    assert ask(state, 0, b"b") == (False, 1, b"a")
    assert ask(state, 1, b"b") == (True, 2, b"b")
    assert ask(state) == (False, 2, b"b")


def made(endpoint, nodes):
    parameters = types.SimpleNamespace(endpoint=endpoint, max_nodes=nodes, run_id="r.1")
    return torchrun.get_handler()(parameters)


@pytest.mark.parametrize(
    "endpoint, told",
    [
        ("localhost:29400", "PET_RDZV_ENDPOINT; 'localhost:29400' is none"),
        (torchrun.endpoint("/s", 2), "given 2 nodes, and rank 2 of the ring is none of them"),
    ],
    ids=["in no ring", "fewer nodes than the ring"],
)
def test_a_torchrun_that_is_no_members_is_an_error(endpoint, told):
    with pytest.raises(ValueError, match=told):
        made(endpoint, 2)


def test_a_member_that_runs_one_alone_has_its_only_rank():
    assert made(torchrun.endpoint("/s", 2), 1).get_backend() == "fiber"
