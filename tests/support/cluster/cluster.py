"""The emulated cluster as tests use it: its start and end, its clients, its nodes and faults."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from .assembly import Parts, assemble
from .hollow import Act, Hollow
from .kinds import NAMESPACES, Resource
from .knobs import Knobs
from .requests import Call
from .runtime import Runtime
from .store import Object, clone

__all__ = ["Cluster"]

T = TypeVar("T")
_PATIENCE = 120.0


class Cluster(Knobs):
    """A cluster that runs until its block ends. Made by ``Cluster.start``."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, parts: Parts) -> None:
        self._folder, self._loop, self._parts = folder, loop, parts

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        *,
        script: Callable[[Object], Act] | None = None,
        runtime: Runtime | None = None,
        nodes: Sequence[str] = ("knode",),
        capacity: dict[str, str] | None = None,
        addresses: Sequence[str] = ("127.0.0.1",),
        back_off: float = 1.0,
        bookmark_every: float = 60.0,
        identified: bool = True,
    ) -> Iterator[Cluster]:
        """Start a cluster, and end all of it.

        Args:
            script: what hollow pods do, by their object; default: they run until ended.
            runtime: runs containers instead of the hollow one (see ``cluster.real``).
            nodes: names of the nodes.
            capacity: of each node; default 4 cpu, 8Gi, 110 pods.
            addresses: where the API server listens.
            back_off: first wait before a failed container or image is tried again.
            bookmark_every: seconds between a watch's bookmarks.
            identified: False for certificates without key identifiers.
        """
        folder = Path(tempfile.mkdtemp(prefix="fk-"))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="cluster")
        thread.start()
        made = runtime or (Hollow(script) if script is not None else Hollow())
        try:
            parts = _on(
                loop,
                assemble(
                    folder,
                    made,
                    addresses,
                    back_off=back_off,
                    bookmarks=bookmark_every,
                    identified=identified,
                ),
            )
            cluster = cls(folder, loop, parts)
            try:
                for name in nodes:
                    cluster.add_node(name, capacity, address=parts.server.addresses[-1])
                cluster.call(lambda: [parts.controllers.complete("default")])
                yield cluster
            finally:
                _on(loop, parts.close())
            if parts.failures:
                raise AssertionError("\n".join(parts.failures))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            shutil.rmtree(folder)

    # clients

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self._parts.server.port}"

    @property
    def authority_file(self) -> Path:
        """The certificate that clients trust."""
        return self._folder / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the administrator, whose context is in namespace ``default``."""
        path = self._folder / "kubeconfig"
        if not path.exists():
            self.write_kubeconfig(path)
        return path

    def write_kubeconfig(
        self, path: Path, *, user: str = "admin", namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig for a user.

        Args:
            path: where.
            user: "admin", ``NAMESPACE/SERVICE_ACCOUNT``, or the name of a user without rights.
            namespace: of its context.
        """
        context = {"cluster": "emulated", "user": user, "namespace": namespace}
        server = {"server": self.url, "certificate-authority": str(self.authority_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "emulated", "cluster": server}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "emulated", "context": context}],
            "current-context": "emulated",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def token(self, user: str = "admin") -> str:
        """A token of a user, named as for ``write_kubeconfig``."""
        authority = self._parts.authority
        if "/" in user:
            namespace, name = user.split("/")
            return self.call(lambda: authority.account_token(namespace, name))
        groups = ("system:masters",) if user == "admin" else ()
        return self.call(lambda: authority.user_token(user, groups))

    def client_for(self, user: str = "admin") -> Any:
        """An ``ApiClient`` of the official client, to be closed by the caller."""
        from kubernetes import client

        config = client.Configuration()
        config.host = self.url
        config.ssl_ca_cert = str(self.authority_file)
        config.api_key = {"authorization": f"Bearer {self.token(user)}"}
        return client.ApiClient(config)

    # counting

    @property
    def requests(self) -> list[Call]:
        """Every call that reached the server so far."""
        return list(self._parts.server.calls)

    def forget_requests(self) -> None:
        """Count from here."""
        self._parts.server.calls.clear()

    # objects, without a client

    def objects(self, plural: str, namespace: str | None = None) -> list[Object]:
        """Copies of all objects of a kind."""
        resource = self._resource(plural)
        return self.call(lambda: clone(self._parts.store.list(resource, namespace)))

    def history(self, plural: str, namespace: str | None = None) -> list[tuple[str, Object]]:
        """Every change of a kind so far: ADDED, MODIFIED or DELETED, and the object after it."""
        resource = self._resource(plural)
        return self.call(lambda: clone(self._parts.store.history(resource, namespace)))

    def get(self, plural: str, name: str, namespace: str | None = "default") -> Object | None:
        """A copy of an object; None where there is none."""
        resource = self._resource(plural)
        where = namespace if resource.namespaced else None
        return self.call(lambda: clone(self._parts.store.get(resource, where, name)))

    def create(self, plural: str, thing: Object, namespace: str = "default") -> Object:
        """Make an object as the administrator would, validated and defaulted."""
        from .requests import Asked

        resource = self._resource(plural)
        where = namespace if resource.namespaced else None
        asked = Asked(verb="create", resource=resource, namespace=where)
        return self.call(lambda: clone(self._parts.api.create(asked, clone(thing))))

    def wait_for(
        self, plural: str, test: Callable[[list[Object]], Any], *, timeout: float = 30.0
    ) -> Any:
        """Wait until a test of all objects of a kind is true; the answer is the test's."""
        resource = self._resource(plural)
        store, deadline = self._parts.store, time.monotonic() + timeout

        def look() -> tuple[int, list[Object]]:
            return store.version, clone(store.list(resource))

        async def news(version: int) -> None:
            changes = store.subscribe(resource, since=version)
            try:
                await asyncio.wait_for(changes.get(), max(deadline - time.monotonic(), 0))
            finally:
                changes.close()

        # the test runs in the caller's thread, so that it may ask the cluster too
        while True:
            version, things = self.call(look)
            if found := test(things):
                return found
            try:
                self.wait(news(version))
            except asyncio.TimeoutError:
                broken = "\n".join(self._parts.kubelet.failures)
                msg = f"{plural} did not become so within {timeout:g} s: {things}\n{broken}"
                raise AssertionError(msg) from None

    def add_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Make a namespace with its default service account."""

        def make() -> None:
            thing: Object = {
                "kind": "Namespace",
                "apiVersion": "v1",
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/metadata.name": name, **(labels or {})},
                },
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            }
            self._parts.store.create(NAMESPACES, thing)
            self._parts.controllers.complete(name)

        self.call(make)

    def add_quota(self, hard: dict[str, str], namespace: str = "default") -> None:
        """Limit what a namespace may use."""
        self.create(
            "resourcequotas", {"metadata": {"name": "quota"}, "spec": {"hard": hard}}, namespace
        )

    def add_account(
        self, name: str, rules: Sequence[Object] = (), namespace: str = "default"
    ) -> str:
        """Make a service account with a role; the answer is its name for ``token``."""
        self.create("serviceaccounts", {"metadata": {"name": name}}, namespace)
        if rules:
            role = {"metadata": {"name": name}, "rules": list(rules)}
            self.create("roles", role, namespace)
            binding = {
                "metadata": {"name": name},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": name,
                },
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            }
            self.create("rolebindings", binding, namespace)
        return f"{namespace}/{name}"

    def call(self, work: Callable[[], T]) -> T:
        """Run something in the server's loop, and wait for it."""

        async def run() -> T:
            return work()

        return _on(self._loop, run())

    def wait(self, work: Any) -> Any:
        """Run a coroutine in the server's loop, and wait for it."""
        return _on(self._loop, work)

    @property
    def parts(self) -> Parts:
        """What the cluster is made of, for tests of its own."""
        return self._parts

    def _resource(self, plural: str) -> Resource:
        from .kinds import of

        found = of(plural)
        assert found is not None, plural
        return found


def _on(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(_PATIENCE)
