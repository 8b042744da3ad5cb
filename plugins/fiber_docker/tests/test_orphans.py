"""Ends of containers: orphans are removed, the others get SIGTERM first, and one that is gone has ended."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from fiber.backend_parts.liveness import Liveness, Owner
from fiber_docker.client import Client
from fiber_docker.config import DockerConfig
from fiber_docker.orphans import (
    MASTER_CONTAINER_LABEL,
    MASTER_LABEL,
    liveness_of_master,
    master_identity,
)

ALIVE, DEAD, UNKNOWN = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN
LOCAL = Owner.decode(master_identity())
#: a process of another container, or of another host of this name
REMOTE = LOCAL._replace(place=f"{LOCAL.host}/another/1/1", pid=1)


@pytest.mark.parametrize(
    "owner, state, expected",
    [
        pytest.param(LOCAL, None, ALIVE, id="this process"),
        pytest.param(LOCAL, "exited", ALIVE, id="this one, whatever a container does"),
        pytest.param(LOCAL._replace(pid=4194304), None, DEAD, id="one that is no more"),
        pytest.param(LOCAL._replace(started=1.0), None, DEAD, id="another of its number"),
        *((mark, None, UNKNOWN) for mark in ("", "elsewhere:1:1.0", "a:b", REMOTE)),
        *((REMOTE, state, DEAD) for state in ("exited", "dead")),
        *((REMOTE, state, UNKNOWN) for state in ("running", "paused", "restarting")),
        pytest.param(REMOTE, None, UNKNOWN, id="in a container of which nothing is known"),
    ],
)
def test_a_master_is_dead_only_where_its_process_or_its_container_proves_it(owner, state, expected):
    mark = owner.encode() if isinstance(owner, Owner) else owner
    labels = {MASTER_LABEL: mark, MASTER_CONTAINER_LABEL: "c0ffee"}

    assert liveness_of_master(labels, {"c0ffee": state}.get) is expected


@pytest.fixture
def client(engine):
    with contextlib.closing(Client(DockerConfig(host=engine.url))) as made:
        yield made


def test_a_removed_container_is_gone_also_where_another_removal_was_under_way(client, engine):
    def remove_and_look(job):
        client.remove(job)
        return [one for one in engine.containers() if one.startswith(f"/{job}:")]

    with ThreadPoolExecutor(4) as threads:
        for number in range(5):
            job = engine.named(f"removed-{number}")
            client.create(job, {"Image": engine.image, "Cmd": ["sleep", "1000"]})
            client.api.start(job)
            assert list(threads.map(remove_and_look, [job] * 4)) == [[]] * 4
