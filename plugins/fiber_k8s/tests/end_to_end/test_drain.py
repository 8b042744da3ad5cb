"""Nodes that are drained, pods that have to go: workers hand their work over, and pools that cannot grow.

How often a task ran is counted in a file of the host's, which nobody takes back; workers have it by
their master's volume, which they inherit.
"""

from collections import Counter

import pytest

from k8s_world import QUOTA_EXCEEDED
from wire_world import until

pytestmark = pytest.mark.timeout(400)

MAP = """
import os, time, platform
import fiber

def work(number):
    with open("/count/ran", "a") as file:
        file.write(f"{number} {platform.node()}\\n")
    time.sleep(0.2)
    return number

if __name__ == "__main__":
    with fiber.Pool(3, max_attempts=1) as pool:
        pool.map(abs, range(3), chunksize=1)
        print("ready", flush=True)
        assert pool.map(work, range(200)) == list(range(200))
    print("right", flush=True)
"""

LONG = """
import os, platform, signal
import fiber

def work():
    first = not os.path.exists("/count/ran")
    with open("/count/ran", "a") as file:
        file.write(f"long {platform.node()}\\n")
    if first:
        signal.pause()
    return platform.node()

if __name__ == "__main__":
    # the first death that counts would be the end of the task
    with fiber.Pool(1, max_attempts=1) as pool:
        print(pool.apply(work), flush=True)
"""

FULL = """
import time
import fiber

def square(number):
    time.sleep(0.1)
    return number * number

if __name__ == "__main__":
    fiber.init(cpu=1)
    with fiber.Pool(4) as pool:
        assert pool.map(square, range(100)) == [n * n for n in range(100)]
    print("right", flush=True)
"""


NODES = ["one", "two"]
CAPACITY = {"cpu": "3"}


@pytest.fixture(scope="module", autouse=True)
def master_node(kube):
    """The masters' own, which no test takes away; they are bound to it, and nobody else is."""
    kube.add_node("master", {"cpu": "64", "memory": "64Gi"})
    kube.cordon("master")


@pytest.fixture
def counted(tmp_path):
    """Lines that tasks wrote in a folder of this host, by ``counted.pod``'s options."""
    tmp_path.chmod(0o777)
    return Counted(tmp_path)


class Counted:
    def __init__(self, folder):
        self._path = folder / "ran"
        self.pod = {
            "mounts": [{"name": "count", "mountPath": "/count"}],
            "volumes": [{"name": "count", "hostPath": {"path": str(folder)}}],
        }

    def lines(self):
        text = self._path.read_text() if self._path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def counts(self):
        return Counter(word for word, _ in self.lines())

    def wait(self, count):
        until(lambda: len(self.lines()) >= count, timeout=120.0)


def node_of(kube, pod):
    return kube.get("pods", pod)["spec"].get("nodeName")


def test_nodes_are_drained_during_a_map_and_each_task_runs_once(masters, kube, counted):
    name = masters.start(MAP, nodeName="master", **counted.pod)
    masters.wait_for_workers(3)
    gone = set()
    for count in (20, 90):
        counted.wait(count)
        victim = min(masters.workers())
        node = node_of(kube, victim)
        on_it = {pod for pod in masters.workers() if node_of(kube, pod) == node}
        kube.cordon(node)
        for pod in on_it:
            kube.evict(pod)
        gone |= on_it
        until(lambda on_it=on_it: not on_it & set(masters.workers()), timeout=120.0)
        masters.wait_for_workers(1)
        kube.uncordon(node)
    code, lines = masters.wait(name)
    assert (code, lines[-1:]) == (0, ["right"]), lines
    assert set(counted.counts().values()) == {1}
    assert len(counted.counts()) == 200
    assert gone & {host for _, host in counted.lines()}, "nobody who had to go had done anything"


def test_a_task_that_takes_longer_than_the_grace_runs_again_and_is_not_to_blame(
    masters, kube, counted
):
    name = masters.start(LONG, nodeName="master", env={"FIBER_K8S_GRACE": "2"}, **counted.pod)
    counted.wait(1)
    ((_, first),) = counted.lines()
    kube.evict(first)
    code, lines = masters.wait(name)
    assert code == 0, lines
    assert lines[-1] != first
    assert counted.counts() == {"long": 2}


def test_a_quota_does_not_keep_a_pool_from_the_workers_within_it(masters, kube):
    with kube.refuse_pods(QUOTA_EXCEEDED, beyond=3):
        code, lines = masters.wait(masters.start(FULL, nodeName="master"))
    assert (code, lines[-1]) == (0, "right"), lines
    assert any("exceeded quota" in line for line in lines), lines
