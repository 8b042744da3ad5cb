"""Programs that run in pods of an emulated cluster, as users' masters do."""

import contextlib
import json
import secrets
from pathlib import Path

import psutil
import yaml

import fiber_k8s.rbac
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.logs import last_lines

__all__ = ["Masters", "grant"]

_PLURALS = {"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}


def grant(cluster):
    """The least rights that the command prints, for the service account ``fiber``."""
    for thing in yaml.safe_load_all(fiber_k8s.rbac.manifests("default")):
        cluster.create(_PLURALS[thing["kind"]], thing)


class Masters:
    """Starts masters, waits for their ends, and looks at what is left."""

    def __init__(self, cluster, image):
        self.cluster = cluster
        self._image = image
        self._client = Client(K8sConfig(kubeconfig=str(cluster.kubeconfig)))

    def start(self, program, *words, env=None, mounts=(), **spec):
        """A plain pod that runs a program's source, as ``kubectl run`` makes one."""
        name = f"master-{secrets.token_hex(3)}"
        source = Path(program).read_text(encoding="utf-8") if "\n" not in program else program
        run = (
            "import os, sys; os.chdir('/tmp'); "
            f"open('program.py', 'w').write({source!r}); "
            f"os.execvp('python3', ['python3', 'program.py', *{json.dumps(words)}])"
        )
        variables = [{"name": key, "value": text} for key, text in (env or {}).items()]
        container = {
            "name": "main",
            "image": self._image,
            "imagePullPolicy": "Never",
            "command": ["python3", "-c", run],
            "env": [{"name": "MPLBACKEND", "value": "Agg"}, *variables],
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "volumeMounts": list(mounts),
        }
        pod = {
            "metadata": {"name": name, "labels": {"app": "mine"}},
            "spec": {
                "serviceAccountName": "fiber",
                "restartPolicy": "Never",
                "containers": [container],
                **spec,
            },
        }
        self.cluster.create("pods", pod)
        return name

    def wait(self, name, timeout=240.0):
        """The exit code of a master, and the last lines that it wrote."""

        def ended(pods):
            for pod in pods:
                if pod["metadata"]["name"] == name:
                    for one in pod["status"].get("containerStatuses") or ():
                        found = one["state"].get("terminated")
                        if found:
                            return (found["exitCode"],)
            return None

        (code,) = self.cluster.wait_for("pods", ended, timeout=timeout)
        return code, list(last_lines(self._client, name, 200, "main"))

    def kill(self, name):
        """SIGKILL to all processes of a pod; its object stays, as after a crash."""
        for process in psutil.process_iter(["pid"]):
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                if environ.get("HOSTNAME") == name:
                    process.kill()

    def said(self, name):
        """What a master has written so far."""
        return list(last_lines(self._client, name, 200, "main"))

    def workers(self, phase="Running"):
        """The names of pods of Fiber's processes."""
        return [
            pod["metadata"]["name"]
            for pod in self.cluster.objects("pods")
            if pod["metadata"].get("labels", {}).get("fiber/kind") == "process"
            and pod["status"].get("phase") == phase
            and not pod["metadata"].get("deletionTimestamp")
        ]

    def wait_for_workers(self, count, timeout=120.0):
        """Wait until so many processes run."""

        def there(pods):
            running = [
                pod
                for pod in pods
                if pod["metadata"].get("labels", {}).get("fiber/kind") == "process"
                and pod["status"].get("phase") == "Running"
            ]
            return len(running) >= count

        self.cluster.wait_for("pods", there, timeout=timeout)

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
