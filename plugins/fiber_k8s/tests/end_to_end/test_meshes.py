"""A master beside a mesh's proxy, which stands before it in its pod: children are copies of the master."""

import pytest

from cluster import Cluster
from cluster.real import Docker
from k8s_masters import grant

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import os
import fiber

def look():
    raise SystemExit({"app": 41}.get(os.environ.get("WHO"), 1))

if __name__ == "__main__":
    process = fiber.Process(target=look)
    process.start()
    process.join()
    raise SystemExit(process.exitcode + 1)
"""
RUN = f"import os; os.chdir('/tmp'); open('p.py', 'w').write({PROGRAM!r}); os.execvp('python3', ['python3', 'p.py'])"


def test_the_programs_own_container_is_what_its_children_are_made_of(engine):
    def container(name, *command):
        limits = {"cpu": "1", "memory": "512Mi"}
        return {
            "name": name,
            "image": engine.image,
            "imagePullPolicy": "Never",
            "command": ["python3", "-c", *command],
            "env": [{"name": "WHO", "value": name}],
            "resources": {"limits": limits},
        }

    # it hears SIGTERM, and the pod ends when it does
    proxy = "import signal; signal.signal(15, lambda *_: exit()); signal.pause()"
    spec = {
        "serviceAccountName": "fiber",
        "restartPolicy": "Never",
        "containers": [container("linkerd-proxy", proxy), container("app", RUN)],
    }
    with Cluster.start(runtime=Docker(engine), nodes=["one"]) as cluster:
        grant(cluster)
        cluster.create("pods", {"metadata": {"name": "master"}, "spec": spec})

        def ended(pods):
            (told,) = (pod["status"] for pod in pods if pod["metadata"]["name"] == "master")
            for one in told.get("containerStatuses") or ():
                if one["name"] == "app" and "terminated" in one["state"]:
                    return [one["state"]["terminated"]["exitCode"]]
            return []

        assert cluster.wait_for("pods", ended, timeout=120) == [42]
        cluster.delete_pod("master")
        cluster.wait_for("pods", lambda pods: not pods, timeout=60)
