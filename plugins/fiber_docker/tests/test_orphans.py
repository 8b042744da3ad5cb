"""Ends of containers: orphans are removed, the others get SIGTERM first, and one that is gone has ended."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from fiber.backend_parts.liveness import Liveness, Owner
from fiber.exceptions import BackendUnavailableError, UnknownJobError
from fiber_docker.client import Client
from fiber_docker.config import DockerConfig
from fiber_docker.orphans import (
    MASTER_CONTAINER_LABEL,
    MASTER_LABEL,
    liveness_of_master,
    master_identity,
    sweep,
)
from fiber_docker.termination import Terminator

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


class Gone:
    """An engine that knows of no container."""

    def __init__(self, error):
        self.error = error

    def inspect(self, container):
        raise self.error


@pytest.mark.parametrize(
    "error, warnings",
    [(UnknownJobError("no such job"), 0), (BackendUnavailableError("no engine"), 1)],
)
def test_a_job_that_may_not_have_ended_is_logged_and_one_that_is_gone_is_not(
    error, warnings, caplog
):
    terminator = Terminator(Gone(error), handler_check=0.05)
    with contextlib.closing(terminator):
        terminator.terminate("a", 1.0)
    messages = [one.message for one in caplog.records if "may not have been ended" in one.message]
    assert len(messages) == warnings


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
