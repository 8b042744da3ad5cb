"""Programs that run in pods of an emulated cluster, as users' masters do."""

import contextlib
import json
import secrets
import sysconfig
import threading
import time
from pathlib import Path

import psutil
import yaml

import fiber_k8s.rbac
from cluster.objects import PODS
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.logs import last_lines

__all__ = ["Masters", "PodEndTimes", "grant", "libraries"]

_PLURALS = {"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}


def grant(cluster, namespace="default", account="fiber"):
    """The least rights that the command prints, for a service account."""
    for thing in yaml.safe_load_all(fiber_k8s.rbac.manifests(namespace, account)):
        cluster.create(_PLURALS[thing["kind"]], thing, namespace)


def libraries(**env):
    """Mounts and variables with which a master's pod and its children find this Python's libraries.

    Args:
        env: more variables.
    """
    path = sysconfig.get_path("purelib")
    return {
        "env": {"PYTHONPATH": "/libraries", **env},
        "mounts": [{"name": "libraries", "mountPath": "/libraries", "readOnly": True}],
        "volumes": [{"name": "libraries", "hostPath": {"path": path}}],
    }


class PodEndTimes:
    """Times at which the API first reported the end of each pod, by this host's clock."""

    def __init__(self, cluster):
        self._changed = threading.Condition()
        self._times = {}
        parts = cluster.parts
        cluster.call(lambda: parts.follow(self._read, parts.store.subscribe(PODS)))

    async def _read(self, changes):
        async for change in changes:
            if change.type == "DELETED" or _has_ended(change.object):
                with self._changed:
                    self._times.setdefault(change.object["metadata"]["name"], time.time())
                    self._changed.notify_all()

    def wait(self, pod, timeout=60.0):
        """The time of a pod's end, once it has come."""
        with self._changed:
            assert self._changed.wait_for(lambda: pod in self._times, timeout), f"{pod} goes on"
            return self._times[pod]


def _has_ended(pod):
    status = pod["status"]
    boxes = status.get("containerStatuses") or ()
    return status.get("phase") in {"Succeeded", "Failed"} or any(
        "terminated" in box["state"] for box in boxes
    )


class Masters:
    """Starts masters, waits for their ends, and checks that nothing is left."""

    def __init__(self, cluster, image):
        self.cluster = cluster
        self._image = image
        self._client = Client(K8sConfig(kubeconfig=str(cluster.kubeconfig)))

    def start(
        self, program, *words, env=None, mounts=(), memory="1Gi", name="main", proxy=None, **spec
    ):
        """A plain pod that runs a program's source, as ``kubectl run`` makes one.

        Args:
            program: source, or path of a file.
            words: arguments of the program.
            env: variables.
            mounts: of volumes.
            memory: limit.
            name: of the container.
            proxy: source of a program that runs in a container before it.
            spec: further fields of the pod.
        """
        pod_name = f"master-{secrets.token_hex(3)}"
        source = Path(program).read_text(encoding="utf-8") if "\n" not in program else program
        run = (
            "import os, sys; os.chdir('/tmp'); "
            f"open('program.py', 'w').write({source!r}); "
            f"os.execvp('python3', ['python3', 'program.py', *{json.dumps(words)}])"
        )
        variables = [{"name": key, "value": text} for key, text in (env or {}).items()]
        container = {
            "name": name,
            "image": self._image,
            "imagePullPolicy": "Never",
            "command": ["python3", "-c", run],
            "env": [{"name": "MPLBACKEND", "value": "Agg"}, *variables],
            "resources": {"limits": {"cpu": "2", "memory": memory}},
            "volumeMounts": list(mounts),
        }
        containers = [container]
        if proxy is not None:
            command = ["python3", "-c", proxy]
            containers.insert(
                0, {**container, "name": "linkerd-proxy", "command": command, "env": []}
            )
        pod = {
            "metadata": {"name": pod_name, "labels": {"app": "mine"}},
            "spec": {
                "serviceAccountName": "fiber",
                "restartPolicy": "Never",
                "containers": containers,
                **spec,
            },
        }
        self.cluster.create("pods", pod)
        return pod_name

    def wait(self, name, timeout=240.0):
        """The exit code of a master, and the last lines that it wrote."""
        (code,) = self.cluster.wait_for("pods", lambda pods: _code(pods, name), timeout=timeout)
        return code, self.output(name)

    def has_ended(self, name, within=0.0):
        """Whether a master has ended, or does so within some seconds."""
        try:
            self.cluster.wait_for("pods", lambda pods: _code(pods, name), timeout=within)
        except AssertionError:
            return False
        return True

    def touch(self, name, path):
        """Make a file in a pod that runs."""
        process = next(_processes(name))
        Path(f"/proc/{process.pid}/root{path}").touch()

    def kill(self, name):
        """SIGKILL to all processes of a pod; its object stays, as after a crash."""
        for process in _processes(name):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def output(self, name):
        """The last lines that a master has written so far."""
        return list(last_lines(self._client, name, 1000, "main"))

    def workers(self, phase="Running"):
        """The names of pods of Fiber's processes."""
        return _workers(self.cluster.objects("pods"), phase)

    def wait_for_workers(self, count, timeout=120.0):
        """Wait until so many processes run."""

        self.cluster.wait_for("pods", lambda pods: len(_workers(pods)) >= count, timeout=timeout)

    def wait_until_gone(self, timeout=60.0):
        """Wait until nothing of any run is left."""
        for plural in ("pods", "secrets", "leases"):
            self.cluster.wait_for(
                plural,
                lambda things: not [
                    one
                    for one in things
                    if "fiber/run" in one["metadata"].get("labels", {})
                ],
                timeout=timeout,
            )  # fmt: skip

    def clear(self):
        """Remove the masters."""
        for pod in self.cluster.objects("pods"):
            with contextlib.suppress(Exception):
                self.cluster.delete_pod(pod["metadata"]["name"], grace=1)
        self._client.close()


def _processes(pod):
    """The processes of a pod, which are this host's."""
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOSTNAME") == pod:
                yield process


def _workers(pods, phase="Running"):
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"].get("labels", {}).get("fiber/kind") == "process"
        and pod["status"].get("phase") == phase
        and not pod["metadata"].get("deletionTimestamp")
    ]


def _code(pods, name):
    """The exit code of a pod's first container, alone in a tuple; None while it runs."""
    for pod in pods:
        if pod["metadata"]["name"] == name:
            for one in pod["status"].get("containerStatuses") or ():
                if ended := one["state"].get("terminated"):
                    return (ended["exitCode"],)
    return None
