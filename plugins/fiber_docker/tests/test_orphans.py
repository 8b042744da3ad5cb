"""Orphans: containers whose master is proven to be dead are removed, others stay."""

import pytest

from fiber.backend_parts.liveness import Liveness, Owner
from fiber_docker.orphans import (
    MASTER_CONTAINER_LABEL,
    MASTER_LABEL,
    liveness_of_master,
    master_identity,
    sweep,
)

ALIVE, DEAD, UNKNOWN = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN
LOCAL = Owner.decode(master_identity())
#: a process of another container, or of another host of this name
REMOTE = LOCAL._replace(place=f"{LOCAL.host}/another/1/1", pid=1)


def judge(owner, container=None, state=None):
    labels = {MASTER_LABEL: owner.encode() if isinstance(owner, Owner) else owner}
    if container is not None:
        labels[MASTER_CONTAINER_LABEL] = container
    return liveness_of_master(labels, {container: state}.get)


def test_this_process_lives():
    assert judge(LOCAL) is ALIVE


def test_one_that_is_no_more_left_orphans():
    assert judge(LOCAL._replace(pid=4194304)) is DEAD


def test_another_process_of_the_same_number_is_another():
    assert judge(LOCAL._replace(started=1.0)) is DEAD


@pytest.mark.parametrize("mark", ["", "elsewhere:1:1.0", "a:b", REMOTE])
def test_the_liveness_of_masters_of_other_hosts_is_unknown(mark):
    assert judge(mark) is UNKNOWN


@pytest.mark.parametrize(
    "state, expected",
    [
        ("exited", DEAD),
        ("dead", DEAD),
        ("running", UNKNOWN),
        ("paused", UNKNOWN),
        ("restarting", UNKNOWN),
        # the engine does not answer
        (None, UNKNOWN),
    ],
)
def test_a_master_in_a_container_is_as_alive_as_that(state, expected):
    assert judge(REMOTE, "c0ffee", state) is expected


def test_a_master_that_lives_is_not_judged_by_a_container():
    assert judge(LOCAL, "c0ffee", "exited") is ALIVE


def test_containers_without_proof_stay():
    class Engine:
        def __init__(self):
            self.removed = []

        def containers(self, *labels):
            marks = {"a": LOCAL, "b": REMOTE, "c": LOCAL._replace(pid=4194304)}
            return [
                {"Id": name, "Names": [f"/{name}"], "Labels": {MASTER_LABEL: mark.encode()}}
                for name, mark in marks.items()
            ]

        def remove(self, name):
            self.removed.append(name)

    engine = Engine()
    assert sweep(engine, "me") == ["c"]
    assert engine.removed == ["c"]
