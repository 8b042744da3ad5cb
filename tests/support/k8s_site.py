"""Backends on an emulated cluster, with scripts of its pods and recorders of statuses."""

import collections
import itertools
import os
import secrets
import sys
import textwrap
import threading

from cluster import Act
from commands import ran
from fiber._agent.resources.nvidia import NvidiaProvider
from fiber._base import values
from fiber.model import BackendContext, Timing
from fiber_k8s.backend import K8sBackend
from fiber_k8s.config import K8sConfig
from k8s_world import process


def set_durations(backend, **durations):
    """Give a backend durations of its own, in seconds."""
    client = backend._client
    client.timing = values.evolve(client.timing, **durations)


class Scripts:
    """What a test's pods do, by the names of their processes."""

    def __init__(self):
        self.acts = {}
        self.numbers = itertools.count()

    def __call__(self, pod):
        name = pod["metadata"].get("annotations", {}).get("fiber/name", "")
        return self.acts.get(name) or Act()


class StatusRecorder:
    """Statuses from a backend's stream of events, recorded by a thread."""

    def __init__(self, backend, run_id):
        self._changed = threading.Condition()
        self._statuses = collections.defaultdict(list)
        self._events = backend.events(run_id)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for job, status in self._events:
            with self._changed:
                self._statuses[job.id].append(status)
                self._changed.notify_all()

    def until(self, job, test, timeout=30.0):
        """The first status of a job that passes a test."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: [one for one in self._statuses[job.id] if test(one)], timeout
            )
            assert found, self._statuses[job.id]
        return found[0]

    def end(self, job):
        return self.until(job, lambda status: status.state.is_terminal)

    def running(self, job):
        return self.until(job, lambda status: status.state.name == "RUNNING")

    def of(self, job):
        with self._changed:
            return list(self._statuses[job.id])

    def join(self):
        self._thread.join()


class Site:
    """Opens backends on one cluster."""

    def __init__(self, cluster, scripts):
        self.cluster = cluster
        self.scripts = scripts
        self._open = []

    def open(self, run_id=None, lease=30.0, timing=Timing(), **settings):
        run_id = run_id or secrets.token_hex(4)
        settings = {"kubeconfig": str(self.cluster.kubeconfig), **settings}
        context = BackendContext(
            config=K8sConfig(**settings),
            providers={"gpu": NvidiaProvider()},
            run_id=run_id,
            run_directory="/nowhere",
            lease=lease,
            timing=timing,
        )
        backend = K8sBackend(context)
        backend.run = run_id
        backend.recorder = StatusRecorder(backend, run_id)
        self._open.append(backend)
        return backend

    def spec(self, backend, act=None, **changes):
        name = changes.pop("name", f"Process-{next(self.scripts.numbers)}")
        self.scripts.acts[name] = act
        return process(**{"run_id": backend.run, "name": name, "image": "app:1", **changes})

    def start(self, backend, act=None, **changes):
        return backend.submit(self.spec(backend, act, **changes))

    def start_running(self, backend, act=None, **changes):
        """Start a job, and wait until it runs."""
        job = self.start(backend, act, **changes)
        backend.recorder.running(job)
        return job

    def close(self):
        for backend in self._open:
            backend.close()
            backend.recorder.join()

    def run_program(self, folder, source, *words):
        """Run a program outside of the cluster to its end; its exit code, output and errors."""
        script = folder / "program.py"
        script.write_text(textwrap.dedent(source))
        settings = {
            "FIBER_BACKEND": "k8s",
            "FIBER_IMAGE": "app:1",
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "XDG_RUNTIME_DIR": str(folder),
        }
        return ran([sys.executable, script, *words], env={**os.environ, **settings})
