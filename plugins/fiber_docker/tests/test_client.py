"""Calls of a real engine."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from fiber_docker.client import Client
from fiber_docker.config import DockerConfig


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
