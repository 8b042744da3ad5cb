"""A real Kubernetes of one node on this machine, from programs that are on it: ``tox -e k8s-live``.

``python tests/support/control_plane.py BINARIES`` starts ``etcd`` (of the PATH) and what the folder
holds: ``kube-apiserver``, ``kube-controller-manager``, ``kube-scheduler`` and a ``kubelet`` that
talks to Docker itself, which those before 1.24 do. Pods run on an engine of the tests' own. It says
what to export, and goes on until Ctrl-C or SIGTERM; then nothing of it is left but its folder.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import dockerd
import hygiene
from cluster.certificates import Certificates

#: where pods, and this host, find the API server: the first address of the services
SERVER = "10.96.0.1"
NODE = "node-1"
IMAGE = "registry.local/fiber:1"
#: a program that waits, for the container that holds a pod's network
_PAUSE = 'FROM fiber-test\nENTRYPOINT ["bash", "-c", "trap exit TERM; sleep infinity & wait"]\n'
#: kubelets ask for scores that some hosts do not let root have
_RUNC = """#!/bin/bash
while [ $# -gt 0 ] && [ -z "$bundle" ]; do
    words+=("$1"); [ "$1" = --bundle ] && bundle=$2; shift
done
[ -z "$bundle" ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$bundle/config.json"
exec runc "${words[@]}" "$@"
"""
_PATIENCE = 60.0


class Programs:
    """What runs, each with a log; ended in the reverse order."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder = folder
        self._binaries = binaries
        self._words: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **options: Any) -> None:
        """Start a program; options are its flags."""
        program = self._binaries / name
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        self._words[name] = [str(program) if program.exists() else name, *words]
        self._begin(name)

    def send(self, name: str, number: int) -> None:
        """Send a signal to a program; one that it kills has ended then."""
        process = self._running[name]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def go_on(self, name: str) -> None:
        """Continue a stopped program; start one that has ended again."""
        if self._running[name].poll() is None:
            self.send(name, signal.SIGCONT)
        else:
            self._begin(name)
            # it ends with the others, though a test has it started again
            hygiene.restarted.add(self._running[name].pid)

    def check(self) -> None:
        """Raise for one that has ended."""
        for one in self._running.values():
            if one.poll() is not None:
                msg = f"{one.args!r} ended with {one.returncode}; its log is in {self._folder}"
                raise RuntimeError(msg)

    def close(self) -> None:
        running = list(reversed(self._running.values()))
        for one in running:
            one.terminate()
            # a stopped one would not end
            one.send_signal(signal.SIGCONT)
        for one in running:
            dockerd.end(one)

    def _begin(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._words[name], stdout=log, stderr=log, start_new_session=True
            )


class ControlPlane:
    """A cluster that runs.

    Args:
        programs: what it is made of.
        made: its certificates.
        kubeconfig: an administrator's.
    """

    def __init__(self, programs: Programs, made: Certificates, kubeconfig: Path) -> None:
        self._programs = programs
        self._made = made
        self.kubeconfig = kubeconfig

    def kubeconfig_for(self, namespace: str) -> Path:
        """A kubeconfig of an administrator who is in a namespace."""
        return _kubeconfig(self._made, namespace)

    def ask(self, path: str) -> Any:
        """The API server's answer at a path, as an administrator gets it.

        Raises:
            OSError: it does not answer.
        """
        return json.loads(_ask(self._made, path))

    @contextlib.contextmanager
    def outage(self, number: int) -> Iterator[None]:
        """The API server is away, killed or stopped by a signal; at the end it is started again."""
        self._programs.send("kube-apiserver", number)
        try:
            yield
        finally:
            self._programs.go_on("kube-apiserver")


@contextlib.contextmanager
def started(binaries: Path, folder: Path) -> Iterator[ControlPlane]:
    """Start everything.

    Args:
        binaries: the folder of the programs.
        folder: for certificates, logs and state.

    Raises:
        RuntimeError: a program ended, or was not ready in time; it names the logs' folder.
    """
    runc = folder / "runc"
    runc.write_text(_RUNC)
    runc.chmod(0o755)
    config = {"runtimes": {"gentle": {"path": str(runc)}}, "default-runtime": "gentle"}
    held = ("fiber-core", "fiber-local", "fiber-k8s", "pytest")
    programs = Programs(folder, binaries)
    with dockerd.started(held, config) as engine, contextlib.closing(programs):
        # goes with the engine's bridge
        bridge = f"fiber{engine.gateway.split('.')[2]}"
        subprocess.run(["ip", "addr", "add", f"{SERVER}/32", "dev", bridge], check=True)
        _make_images(engine)
        made = Certificates(folder)
        # the API server's, and the kubelet's
        made.make("server", "server", addresses=[SERVER, engine.gateway])
        made.make("admin", "admin", "system:masters")
        made.make("accounts", "service-accounts")
        kubeconfig = _kubeconfig(made)
        _start_server(programs, made)
        _start_controllers(programs, made, kubeconfig)
        _start_kubelet(programs, made, kubeconfig, engine)
        try:
            _wait(programs, lambda: _is_ready(made))
            yield ControlPlane(programs, made, kubeconfig)
        finally:
            dockerd.unmount(folder)


def _kubeconfig(made: Certificates, namespace: str = "default") -> Path:
    """An administrator's kubeconfig, which the cluster's own programs have too."""
    server = {"server": f"https://{SERVER}", "certificate-authority": made.path("ca.crt")}
    user = {"client-certificate": made.path("admin.crt"), "client-key": made.path("admin.key")}
    context = {"cluster": "real", "user": "admin", "namespace": namespace}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": server}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "real", "context": context}],
        "current-context": "real",
    }
    written = made.folder / f"kubeconfig-{namespace}"
    written.write_text(json.dumps(config))
    return written


def _start_server(programs: Programs, made: Certificates) -> None:
    path = made.path
    store = "http://127.0.0.1:23790"
    programs.start(
        "etcd",
        data_dir=path("etcd"),
        listen_client_urls=store,
        advertise_client_urls=store,
        listen_peer_urls="http://127.0.0.1:23800",
        initial_advertise_peer_urls="http://127.0.0.1:23800",
        initial_cluster="default=http://127.0.0.1:23800",
    )
    programs.start(
        "kube-apiserver",
        etcd_servers=store,
        bind_address=SERVER,
        advertise_address=SERVER,
        secure_port=443,
        service_cluster_ip_range="10.96.0.0/16",
        client_ca_file=path("ca.crt"),
        tls_cert_file=path("server.crt"),
        tls_private_key_file=path("server.key"),
        kubelet_certificate_authority=path("ca.crt"),
        kubelet_client_certificate=path("admin.crt"),
        kubelet_client_key=path("admin.key"),
        kubelet_preferred_address_types="InternalIP",
        authorization_mode="RBAC",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=path("accounts.key"),
        service_account_signing_key_file=path("accounts.key"),
    )
    _wait(programs, lambda: _ask(made, "/readyz") == b"ok")


def _start_controllers(programs: Programs, made: Certificates, kubeconfig: Path) -> None:
    # they lead without an election, which they would not survive where the API server is away
    programs.start("kube-scheduler", kubeconfig=kubeconfig, leader_elect="false")
    programs.start(
        "kube-controller-manager",
        kubeconfig=kubeconfig,
        leader_elect="false",
        root_ca_file=made.path("ca.crt"),
        service_account_private_key_file=made.path("accounts.key"),
        use_service_account_credentials="true",
    )


def _start_kubelet(
    programs: Programs, made: Certificates, kubeconfig: Path, engine: dockerd.Engine
) -> None:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": engine.gateway,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": made.path("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": made.path("server.crt"),
        "tlsPrivateKeyFile": made.path("server.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "failSwapOn": False,
        "maxPods": 200,
        # it tells of many pods at once
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
        "resolvConf": "",
    }
    settings = made.folder / "kubelet.json"
    settings.write_text(json.dumps(config))
    programs.start(
        "kubelet",
        config=settings,
        kubeconfig=kubeconfig,
        root_dir=made.folder / "kubelet",
        cert_dir=made.folder / "kubelet-certificates",
        hostname_override=NODE,
        node_ip=engine.gateway,
        container_runtime="docker",
        docker_endpoint=engine.url,
        pod_infra_container_image="pause:1",
        network_plugin="",
    )


def _make_images(engine: dockerd.Engine) -> None:
    name, _, tag = IMAGE.rpartition(":")
    with contextlib.closing(engine.docker()) as client, tempfile.TemporaryDirectory() as context:
        client.images.get(engine.image).tag(name, tag)
        Path(context, "Dockerfile").write_text(_PAUSE)
        client.images.build(path=context, tag="pause:1")


def _is_ready(made: Certificates) -> bool:
    nodes = json.loads(_ask(made, "/api/v1/nodes"))["items"]
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for node in nodes
        for condition in node["status"].get("conditions", ())
    )


def _ask(made: Certificates, path: str) -> bytes:
    context = ssl.create_default_context(cafile=made.path("ca.crt"))
    context.load_cert_chain(made.path("admin.crt"), made.path("admin.key"))
    with urllib.request.urlopen(f"https://{SERVER}{path}", timeout=5, context=context) as answer:
        found: bytes = answer.read()
    return found


def _wait(programs: Programs, is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if is_true():
                return
        programs.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster was not ready after {_PATIENCE:g} s")
        time.sleep(0.5)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("binaries", type=Path, help="folder with kube-apiserver, …, kubelet")
    asked = parser.parse_args(argv)
    if not shutil.which("socat"):
        parser.error("socat is not there, by which a kubelet forwards ports")
    folder = Path(tempfile.mkdtemp(prefix="control-plane-"))
    # as Ctrl-C: what was started is ended on the way out
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), started(asked.binaries.resolve(), folder) as found:
        print(f"export KUBECONFIG={found.kubeconfig}\nexport FIBER_IMAGE={IMAGE}")
        print(f"export FIBER_K8S_PULL=IfNotPresent\n# logs: {folder}", flush=True)
        while True:
            signal.pause()
    shutil.rmtree(folder)


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    main()
