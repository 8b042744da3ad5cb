"""A container is an orphan where its master is proven to be dead, and in no other case."""

import pytest

from fiber.backend_parts.liveness import Liveness, Owner
from fiber_docker.orphans import CONTAINER, MASTER, liveness_of_master, master_mark, sweep

ALIVE, DEAD, UNKNOWN = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN
HERE = Owner.decode(master_mark())
#: a process of another container, or of another host of this name
ELSEWHERE = HERE._replace(place=f"{HERE.host}/another/1/1", pid=1)


def judge(owner, container=None, state=None):
    labels = {MASTER: owner.encode() if isinstance(owner, Owner) else owner}
    if container is not None:
        labels[CONTAINER] = container
    return liveness_of_master(labels, {container: state}.get)


def test_this_process_lives():
    assert judge(HERE) is ALIVE


def test_one_that_is_no_more_left_orphans():
    assert judge(HERE._replace(pid=4194304)) is DEAD


def test_another_process_of_the_same_number_is_another():
    assert judge(HERE._replace(started=1.0)) is DEAD


@pytest.mark.parametrize("mark", ["", "elsewhere:1:1.0", "a:b", ELSEWHERE])
def test_of_what_cannot_be_seen_from_here_nothing_is_said(mark):
    assert judge(mark) is UNKNOWN


@pytest.mark.parametrize(
    "state, told",
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
def test_of_a_master_in_a_container_its_engine_tells(state, told):
    assert judge(ELSEWHERE, "c0ffee", state) is told


def test_a_master_that_lives_is_not_judged_by_a_container():
    assert judge(HERE, "c0ffee", "exited") is ALIVE


def test_what_is_not_proven_stays():
    class Engine:
        def __init__(self):
            self.removed = []

        def containers(self, *labels):
            marks = {"a": HERE, "b": ELSEWHERE, "c": HERE._replace(pid=4194304)}
            return [
                {"Id": name, "Names": [f"/{name}"], "Labels": {MASTER: mark.encode()}}
                for name, mark in marks.items()
            ]

        def remove(self, name):
            self.removed.append(name)

    engine = Engine()
    assert sweep(engine, "me") == ["c"]
    assert engine.removed == ["c"]
