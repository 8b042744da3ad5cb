"""Devices are granted to one job at a time, and asked for as engines understand it.

The requests are seen as the SDK sends them. The engine is real and has no such devices, so that they are
taken out of a request on its way; what a job is granted, waits for and gives back does not depend on it.
"""

import json
import threading

import pytest
import requests

from fiber._agent.resources.nvidia import NvidiaProvider
from fiber.exceptions import ResourceError
from fiber.model import (
    BackendContext,
    Device,
    JobSpec,
    JobState,
    Reason,
    ReasonKind,
    ResourceRequest,
)
from fiber_docker.backend import DockerBackend
from fiber_docker.config import DockerConfig
from fiber_docker.devices import Devices


class Provider:
    kind = "gizmo"
    device_class = "maker.com/gizmo"


@pytest.fixture
def gizmos():
    made = Devices(None, {"gizmo": Provider()}, "python3")
    found = tuple(Device(kind="gizmo", id=f"G{n}", index=n) for n in range(2))
    made._probe = lambda provider, image: found
    return made


def request(count):
    return ResourceRequest(devices={"gizmo": count})


def test_a_job_without_devices_does_not_wait(gizmos):
    got = []

    assert gizmos.grant("a", ResourceRequest(), got.append)
    assert got == [()]


def test_a_job_waits_until_devices_are_free(gizmos):
    gizmos.probe(request(2), "img")
    got = []
    assert gizmos.grant("a", request(2), lambda requests: got.append(("a", requests)))

    assert not gizmos.grant("b", request(1), lambda requests: got.append(("b", requests)))
    assert [name for name, _ in got] == ["a"]
    gizmos.release("a")

    assert [name for name, _ in got] == ["a", "b"]
    assert got[1][1][0]["DeviceIDs"] == ["G0"]
    assert gizmos.free_counts() == {"gizmo": 1}


def test_first_come_is_first_served_also_where_a_later_one_would_fit(gizmos):
    gizmos.probe(request(2), "img")
    got = []
    gizmos.grant("a", request(1), lambda _: got.append("a"))
    gizmos.grant("b", request(2), lambda _: got.append("b"))
    gizmos.grant("c", request(1), lambda _: got.append("c"))
    assert got == ["a"]

    gizmos.release("a")
    assert got == ["a", "b"]
    gizmos.release("b")
    assert got == ["a", "b", "c"]


def test_one_that_gave_up_waiting_is_forgotten(gizmos):
    gizmos.probe(request(2), "img")
    got = []
    gizmos.grant("a", request(2), lambda _: got.append("a"))
    gizmos.grant("b", request(2), lambda _: got.append("b"))

    gizmos.release("b")
    gizmos.release("a")

    assert got == ["a"]
    assert gizmos.free_counts() == {"gizmo": 2}


def test_more_than_there_are_is_an_error(gizmos):
    with pytest.raises(ResourceError, match=r"3 of 'gizmo' are asked for.*has 2"):
        gizmos.probe(request(3), "img")


def test_an_unknown_kind_is_an_error_with_the_installed_ones(gizmos):
    with pytest.raises(ResourceError, match=r"'gadget'.*installed are: gizmo"):
        gizmos.probe(ResourceRequest(devices={"gadget": 1}), "img")


GPUS = [{"uuid": f"GPU-{n}{n}", "index": n, "name": "made up", "memory": 1 << 30} for n in range(2)]


class MadeUpGpus(NvidiaProvider):
    """The provider of GPUs, with a probe that finds two on any machine."""

    def probe(self):
        return ("{python}", "-I", "-S", "-c", f"print({json.dumps(json.dumps(GPUS))})")


@pytest.fixture
def asked(monkeypatch):
    """The device requests of the containers that are created, in order."""
    found = []
    lock = threading.Lock()
    send = requests.Session.send

    def without_devices(self, request, **more):
        if "/containers/create" in request.url:
            body = json.loads(request.body)
            with lock:
                found.append(body["HostConfig"].pop("DeviceRequests", None))
            request.body = json.dumps(body)
            request.headers["Content-Length"] = str(len(request.body))
        return send(self, request, **more)

    monkeypatch.setattr(requests.Session, "send", without_devices)
    return found


@pytest.fixture
def backend(engine, run_id):
    made = DockerBackend(
        BackendContext(
            run_id=run_id,
            config=DockerConfig(host=engine.url, pull="never"),
            providers={"gpu": MadeUpGpus()},
        )
    )
    yield made
    made.close()
    assert engine.containers(run_id) == []


@pytest.fixture
def submit(backend, engine, run_id):
    def start(gpus, *argv, **fields):
        words = argv or ("sleep", "600")
        resources = ResourceRequest(devices={"gpu": gpus})
        spec = {"image": engine.image, "argv": words, "resources": resources, **fields}
        return backend.submit(JobSpec(run_id=run_id, name="n", **spec))

    return start


def by_driver(*ids):
    """The request that engines have understood since there are any."""
    return [{"Driver": "nvidia", "Capabilities": [["gpu"]], "DeviceIDs": list(ids)}]


def states_until(backend, job, wanted):
    seen = []
    for one, status in backend.events(job.run_id):
        if one.id == job.id:
            seen.append(status)
            if status.state is wanted:
                break
    return seen


def test_each_job_asks_for_its_own_gpus_by_their_ids(asked, submit):
    submit(1)
    submit(1)

    assert asked == [
        [{"Driver": "nvidia", "Capabilities": [["gpu"]], "Count": -1}],
        by_driver("GPU-00"),
        by_driver("GPU-11"),
    ]


def test_a_job_without_gpus_asks_for_none(asked, submit):
    submit(0)

    assert asked == [None]


def test_an_engine_that_lists_devices_is_asked_for_them_by_name(asked, submit, backend):
    call = backend._client.call

    def newer(what, function):
        answer = call(what, function)
        if isinstance(answer, dict) and "NCPU" in answer:
            answer["DiscoveredDevices"] = [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-00"}]
        return answer

    backend._client.call = newer
    submit(1)

    assert asked == [
        [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}],
        [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-00"]}],
    ]


def test_a_job_waits_for_gpus_and_gets_those_of_one_that_ended(asked, submit, backend):
    first = submit(2)
    second = submit(1, "true")
    assert backend.status([second])[0].state is JobState.PENDING

    backend.kill(first)

    assert states_until(backend, second, JobState.SUCCEEDED)
    assert asked[1:] == [by_driver("GPU-00", "GPU-11"), by_driver("GPU-00")]


@pytest.mark.parametrize("how,number", [("kill", 9), ("terminate", 15)])
def test_a_job_that_is_ended_while_it_waits_has_ended_and_is_forgotten(
    asked, submit, backend, how, number
):
    first = submit(2)
    waiting = submit(1, entry="x:y", argv=("python3", "-c", ""))
    also = submit(1, "true")

    getattr(backend, how)(waiting)
    (status,) = backend.status([waiting])

    assert (status.state, status.reason) == (JobState.FAILED, Reason(ReasonKind.SIGNAL, number))
    assert not backend._starter.is_submitted_here(waiting.id)
    backend.kill(first)
    assert states_until(backend, also, JobState.SUCCEEDED)
    assert asked[2:] == [by_driver("GPU-00")], "nothing was created for it"


def test_a_program_in_an_image_without_python_keeps_its_gpus(asked, submit, backend):
    # its probe finds the Python that the program then lacks
    submit(1, "true")
    del asked[:]
    backend._starter._config = DockerConfig(pull="never", python="python9")

    job = submit(1, "true")

    assert states_until(backend, job, JobState.SUCCEEDED)
    assert asked == [by_driver("GPU-11")] * 2, "with a wrapper, and then without"


def test_an_engine_without_such_devices_is_quoted(submit):
    with pytest.raises(ResourceError, match=r"could not select device driver \"nvidia\""):
        submit(1)
