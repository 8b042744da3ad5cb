"""A program outside the cluster: everything goes by streams through the API server."""

import os
import secrets
import shutil
import sys
import time

import attrs
import pytest

import fiber
from fiber._runtime import runtime
from fiber.exceptions import BackendError
from fiber.testing.kit.delivery import Streams
from fiber_k8s.backend import K8sBackend
from fiber_k8s.config import K8sConfig
from wire_world import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def outside(kube, engine):
    """This program is outside of the cluster, and starts its processes there, in one run."""
    fiber.init(backend="k8s", image=engine.image, k8s_kubeconfig=str(kube.kubeconfig))
    with pytest.MonkeyPatch.context() as patch:
        # its threads go on from test to test
        patch.setenv("FIBER_BACKEND", "k8s")
        process = fiber.Process(target=int)
        process.start()
        process.join(60)
        current = runtime.started()
        yield kube
    current.close()
    fiber.init()
    left = [pod["metadata"]["name"] for pod in kube.objects("pods")]
    assert [name for name in left if current.run_id in name] == []


def slow_square(x):
    time.sleep(0.05)
    return x * x


def take_all(queue):
    total = 0
    while (item := queue.get(timeout=60)) is not None:
        total += item
    sys.exit(total)


def feed(queue):
    for item in (*range(5), None):
        queue.put(item)


def own_queue(sender):
    queue = fiber.Queue()
    sender.send(queue)
    take_all(queue)


def test_jobs_reach_each_other(outside):
    reader, writer = fiber.Pipe(duplex=False)
    owner = fiber.Process(target=own_queue, args=(writer,))
    owner.start()
    other = fiber.Process(target=feed, args=(reader.recv(),))
    other.start()
    owner.join(60)
    other.join(60)
    assert (owner.exitcode, other.exitcode) == (10, 0)


class TestFaults:
    def test_the_api_server_goes_away_during_a_map_and_results_are_right(self, outside):
        with fiber.Pool(2) as pool:
            workers = set()
            until(lambda: workers.update(pool.map(pid_of, range(20), 1)) or len(workers) == 2)
            result = pool.map_async(slow_square, range(200), 1)
            for _ in range(3):
                time.sleep(0.5)
                with outside.outage():
                    time.sleep(0.5)
            assert result.get(120) == [x * x for x in range(200)]
            # nobody was lost by that
            assert set(pool.map(pid_of, range(20), 1)) <= workers

    def test_pods_are_deleted_during_a_map_and_results_are_right(self, outside):
        with fiber.Pool(2) as pool:
            workers = {node for _, node in pool.map(pid_of, range(20), 1)}
            result = pool.map_async(slow_square, range(100), 1)
            outside.delete_pod(min(workers))
            assert result.get(120) == [x * x for x in range(100)]


class TestKit(Streams):
    """The kit's tests of streams."""

    python = "python3"
    image = "fiber-test"
    patience = 60.0

    @pytest.fixture
    def backend(self, kube, context):
        config = K8sConfig(kubeconfig=str(kube.kubeconfig))
        backend = K8sBackend(attrs.evolve(context, config=config))
        yield backend
        backend.close()


@pytest.fixture(scope="class")
def job(outside):
    queue = fiber.Queue()
    process = fiber.Process(target=take_all, args=(queue,))
    process.start()
    assert process.pid
    yield process._popen.job
    queue.put(None)
    process.join(60)


class TestBesideAJob:
    def test_files_are_copied_in_both_directions(self, request, job, tmp_path):
        backend = runtime.current().backend
        folder = tmp_path / "here" / "deep"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(os.urandom(2**20))
        # its /tmp may be that of this machine
        there = f"/tmp/{secrets.token_hex(8)}"
        request.addfinalizer(lambda: shutil.rmtree(there, ignore_errors=True))
        backend.copy(str(tmp_path / "here"), f"{job.id}:{there}")
        backend.copy(f"{job.id}:{there}", str(tmp_path / "back"))
        assert (tmp_path / "back/deep/file").read_bytes() == (folder / "file").read_bytes()
        # a folder that is there takes it in
        backend.copy(str(folder / "file"), f"{job.id}:{there}")
        backend.copy(f"{job.id}:{there}/file", str(tmp_path))
        assert (tmp_path / "file").read_bytes() == (folder / "file").read_bytes()

    def test_a_missing_file_is_not_copied(self, job, tmp_path):
        with pytest.raises(BackendError, match="no file or folder /nowhere"):
            runtime.current().backend.copy(f"{job.id}:/nowhere", str(tmp_path / "x"))


def pid_of(_):
    time.sleep(0.02)
    return os.getpid(), os.uname().nodename
