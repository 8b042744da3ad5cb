"""Programs in pods of a real cluster, each with another one that starts first after an outage."""

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

import control_plane
from control_plane import ControlPlane
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.run_objects import LEASES
from k8s_masters import Masters, grant
from running import Program
from soak import Round
from waiting import until

_RIGHTS = "rbac.authorization.k8s.io/v1"
_GROUPS = {"leases": LEASES, "roles": _RIGHTS, "rolebindings": _RIGHTS}
_MADE = {"labelSelector": "app.kubernetes.io/managed-by=fiber"}

#: maps again and again, and says so in a folder of its host's
_LIVING = """
import pathlib, time
import fiber

def square(number):
    time.sleep(0.25)
    return number * number

def main():
    told, longest, maps = pathlib.Path("/told"), 0.0, 0
    with fiber.Pool(2) as pool:
        # until its workers are there
        pool.map(square, range(8), chunksize=1)
        while not (told / "end").exists():
            began = time.monotonic()
            assert pool.map(square, range(8), chunksize=1) == [n * n for n in range(8)]
            longest, maps = max(longest, time.monotonic() - began), maps + 1
            (told / "new").write_text(f"{maps} {longest:.2f}")
            (told / "new").rename(told / "maps")

if __name__ == "__main__":
    main()
"""

#: does one thing by which dead programs' runs are removed, and says how many runs looked dead to it
_FIRST = """
import sys, time
import fiber
import fiber.cli.runs
from fiber.cli.main import main
from fiber.cli.session import Session
from fiber.exceptions import BackendError
from fiber_k8s import sweeping
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig

expired = sweeping.expired

def told(*arguments):
    found = expired(*arguments)
    print("expired", len(found), flush=True)
    return found

def wait():
    client = Client(K8sConfig())
    while True:
        try:
            return client.call("GET", client.path("pods"), "look", again=lambda _: False)
        except BackendError:
            time.sleep(0.1)

def command():
    sys.argv[1:] = ["gc"]
    main()

def job():
    process = fiber.Process(target=abs, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0

def sweep():
    with Session.load("k8s").open_backend() as opened:
        print("Removed", *opened.sweep(), flush=True)

def program():
    with fiber.Pool(2) as pool:
        assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))

if __name__ == "__main__":
    # what is loaded now takes no time then
    sweep()
    sweeping.expired = told
    print("ready", flush=True)
    if sys.stdin.readline() == "wait\\n":
        wait()
    globals()[sys.argv[1]]()
"""
#: the last one starts by itself at some moment of the outage, the others as soon as it is over
_WAYS = ["command", "job", "sweep", "program"]


class Namespace:
    """A namespace of a real cluster, used as tests use an emulated one; close it.

    Its service account has the least rights.

    Args:
        plane: the cluster.
        name: of a namespace that is not there yet.
    """

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        self.kubeconfig = plane.kubeconfig_for(name)
        self._client = Client(K8sConfig(kubeconfig=str(self.kubeconfig)))
        body = {"metadata": {"name": name}}
        self._client.call("POST", "/api/v1/namespaces", f"make namespace {name}", body=body)
        grant(self, name)
        # pods are refused before it has a token
        self.wait_for(
            "serviceaccounts", lambda them: them and all(it.get("secrets") for it in them)
        )

    def create(self, plural: str, thing: Mapping[str, Any], namespace: str = "") -> None:
        """Make an object."""
        path = self._client.path(plural, group=_GROUPS.get(plural, ""))
        self._client.call("POST", path, f"create {plural}", body=thing)

    def objects(self, plural: str, **query: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        path = self._client.path(plural, group=_GROUPS.get(plural, ""))
        return list(self._client.call("GET", path, f"list {plural}", query=query)["items"])

    def made_by_fiber(self) -> dict[str, str]:
        """What Fiber has made and is there: uids by kinds and names."""
        return {
            f"{plural} {thing['metadata']['name']}": thing["metadata"]["uid"]
            for plural in ("leases", "secrets", "pods")
            for thing in self.objects(plural, **_MADE)
        }

    def wait_for(
        self, plural: str, test: Callable[[list[dict[str, Any]]], Any], *, timeout: float = 120.0
    ) -> Any:
        """Wait until a test of all objects of a kind is true; the answer is the test's."""
        deadline = time.monotonic() + timeout
        while not (found := test(things := self.objects(plural))):
            assert time.monotonic() < deadline, f"{plural} did not become so: {things}"
            # a watch for each of many namespaces would be more work for everybody
            time.sleep(0.5)
        return found

    def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        """Delete a pod as somebody else would."""
        self._client.delete("pods", name, grace=grace)

    def close(self) -> None:
        """Have it deleted with all that is in it."""
        self._client.call("DELETE", f"/api/v1/namespaces/{self.name}", f"delete {self.name}")
        self._client.close()


class Trial:
    """A program that lives through an outage, and another one that starts first after it."""

    def __init__(self, plane: control_plane.ControlPlane, current: Round, folder: Path) -> None:
        self.current, self.way = current, _WAYS[current.seed % len(_WAYS)]
        self.folder = folder / f"{current.seed}"
        self.told = self.folder / "told"
        self.told.mkdir(parents=True)
        (self.folder / "first.py").write_text(_FIRST)
        self.namespace = Namespace(plane, f"soak-{current.seed}-{secrets.token_hex(3)}")
        self.masters = Masters(self.namespace, control_plane.IMAGE)
        mount = {"name": "told", "mountPath": "/told"}
        volume = {"name": "told", "hostPath": {"path": str(self.told)}}
        # many of them have one node
        requests = {"cpu": "10m", "memory": "10Mi"}
        self.master = self.masters.start(
            _LIVING, mounts=[mount], volumes=[volume], requests=requests
        )
        # a short path, and nobody else's runs
        self.runtime = tempfile.TemporaryDirectory(prefix="fk-")
        self.first: Program | None = None
        self.said = ""
        self.before: dict[str, str] = {}
        self.processes: list[psutil.Process] = []
        self.is_held = False
        self.is_closed = False

    def maps(self) -> tuple[int, float]:
        """How many maps the program has done, and the seconds of the longest."""
        count, longest = (self.told / "maps").read_text().split()
        return int(count), float(longest)

    def wait_for_maps(self, more: int) -> None:
        """Wait until the program has done some more."""
        count = self.maps()[0] if (self.told / "maps").exists() else 0
        until(lambda: (self.told / "maps").exists() and self.maps()[0] >= count + more, timeout=240)

    def prepare(self) -> None:
        """Remember what is there, and make ready who starts first."""
        self.processes = self.masters.processes(self.master)
        self.before = self.namespace.made_by_fiber()
        environ = {"FIBER_BACKEND": "k8s", "FIBER_IMAGE": control_plane.IMAGE}
        environ |= {"KUBECONFIG": str(self.namespace.kubeconfig), "FIBER_K8S_PULL": "Never"}
        environ |= {"XDG_RUNTIME_DIR": self.runtime.name}
        self.first = Program(self.folder, "first.py", self.way, environ=environ)
        while (line := self.first.line()) != "ready":
            assert line == "Removed"

    def hold(self) -> None:
        """Stop the program, in every other trial of a way: it renews its Lease later than the others."""
        self.is_held = bool(self.current.seed // len(_WAYS) % 2)
        for process in self.processes if self.is_held else ():
            process.suspend()

    def release(self) -> None:
        """Let the program go on as soon as the other one has looked for dead ones."""
        if not self.is_held:
            return
        assert self.first is not None
        try:
            self.said = self.first.line()
        finally:
            for process in self.processes:
                process.resume()

    def judge(self) -> None:
        """Wait for both ends: the program and what is its own were left alone, then nothing is left."""
        assert self.first is not None
        said, _ = self.first.process.communicate(timeout=240)
        said = f"{self.said}\n{said}"
        assert self.first.process.returncode == 0, said
        removed = [line for line in said.splitlines() if line.startswith("Removed") and line[7:]]
        assert removed == []
        self.wait_for_maps(2)
        now = self.namespace.made_by_fiber()
        assert {key: now.get(key) for key in self.before} == self.before
        (self.told / "end").touch()
        code, words = self.masters.wait(self.master)
        assert code == 0, words
        assert "renewed" in self.current.facts
        count, longest = self.maps()
        self.namespace.wait_for("leases", lambda _: not self.namespace.made_by_fiber(), timeout=60)
        self.current.note(
            way=self.way,
            held=self.is_held,
            expired="expired 1" in said,
            maps=count,
            longest_map=longest,
        )

    def close(self) -> None:
        """End both, and remove what is theirs. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.first is not None:
            self.first.close()
        self.masters.clear()
        self.namespace.close()
        self.runtime.cleanup()
