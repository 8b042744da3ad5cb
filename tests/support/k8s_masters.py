"""Programs that run in pods of an emulated cluster, as users' masters do."""

import contextlib
import secrets
from pathlib import Path

import psutil
import yaml

import fiber_k8s.rbac
import process_signals
from cluster.objects import PODS
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.logs import last_lines


def grant(cluster, namespace="default", account="fiber", options=()):
    """The least rights that the command prints, for a service account, and those of options."""
    text = fiber_k8s.rbac.manifests(namespace, account, options=options)
    for thing in yaml.safe_load_all(text):
        cluster.create(f"{thing['kind'].lower()}s", thing, namespace)


def time_of_end(cluster, pod):
    """The time at which the API first reported a pod's end, by this host's clock; waits for it."""

    def find():
        return [
            change.time
            for change in cluster.store.changes
            if change.resource is PODS
            and change.object["metadata"]["name"] == pod
            and (change.type == "DELETED" or _has_ended(change.object))
        ]

    return cluster.wait_for("pods", lambda _: cluster.call(find), timeout=60.0)[0]


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

    def start(self, program, env=None, mounts=(), requests=None, **spec):
        """A plain pod that runs a program's source, as ``kubectl run`` makes one.

        Args:
            program: its source.
            env: variables.
            mounts: of volumes.
            requests: what a node must have for it; else all that it may use.
            spec: further fields of the pod.
        """
        pod_name = f"master-{secrets.token_hex(3)}"
        run = (
            "import os, sys; os.chdir('/tmp'); "
            f"open('program.py', 'w').write({program!r}); "
            "os.execvp('python3', ['python3', 'program.py'])"
        )
        limits = {"cpu": "2", "memory": "1Gi"}
        container = {
            "name": "main",
            "image": self._image,
            "imagePullPolicy": "Never",
            "command": ["python3", "-c", run],
            "env": [{"name": key, "value": text} for key, text in (env or {}).items()],
            "resources": {"limits": limits, "requests": requests or limits},
            "volumeMounts": list(mounts),
        }
        pod = {
            "metadata": {"name": pod_name, "labels": {"app": "mine"}},
            "spec": {
                "serviceAccountName": "fiber",
                "restartPolicy": "Never",
                "containers": [container],
                **spec,
            },
        }
        self.cluster.create("pods", pod)
        return pod_name

    def wait(self, name, timeout=240.0):
        """The exit code of a master, and the last lines that it wrote."""
        (code,) = self.cluster.wait_for("pods", lambda pods: _code(pods, name), timeout=timeout)
        return code, self.output(name)

    def touch(self, name, path):
        """Make a file in a pod that runs."""
        process = self.processes(name)[0]
        Path(f"/proc/{process.pid}/root{path}").touch()

    def kill(self, name):
        """SIGKILL to all processes of a pod; its object stays, as after a crash."""
        for process in self.processes(name):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def processes(self, name):
        """The processes of a pod, which are this host's, as they are now."""
        return list(process_signals.with_variable("HOSTNAME", name))

    def output(self, name):
        """The last lines that a master has written so far."""
        return list(last_lines(self._client, name, 1000, "main"))

    def workers(self):
        """The names of pods of Fiber's processes that run."""
        return _workers(self.cluster.objects("pods"))

    def wait_for_workers(self, count):
        """Wait until so many processes run."""
        self.cluster.wait_for("pods", lambda pods: len(_workers(pods)) >= count, timeout=120.0)

    def clear(self):
        """Remove the masters."""
        for pod in self.cluster.objects("pods"):
            with contextlib.suppress(Exception):
                self.cluster.delete_pod(pod["metadata"]["name"], grace=1)
        self._client.close()


def _workers(pods):
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"].get("labels", {}).get("fiber/kind") == "process"
        and pod["status"].get("phase") == "Running"
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
