"""Pods whose containers run on an engine: what they see, how they end, and who can talk to them."""

import contextlib
import time

import pytest
from kubernetes import client
from kubernetes.stream import portforward, stream

from cluster import Cluster
from cluster.real import Docker

# the first test waits for the engine and its image
pytestmark = pytest.mark.timeout(300)

_ECHO = """
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
server = socket.create_server(("127.0.0.1", 9000))
print("up")
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
"""
_ASKS = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
token, namespace = (open(folder + name).read() for name in ("token", "namespace"))
context = ssl.create_default_context(cafile=folder + "ca.crt")
host, port = (os.environ["KUBERNETES_SERVICE_" + name] for name in ("HOST", "PORT"))
url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods/{os.environ['HOSTNAME']}"
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
pod = json.load(urllib.request.urlopen(request, context=context))
print(pod["metadata"]["name"], os.environ["IP"] == pod["status"]["podIP"], os.environ["CPU"])
"""


@pytest.fixture(scope="module")
def kube(engine):
    with Cluster.start(runtime=Docker(engine), nodes=["one"], back_off=0.2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def core(kube):
    with contextlib.closing(kube.client_for()) as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def start(core, kube):
    """Makes a pod, and removes all at the end."""

    def make(name, *command, python=None, spec=None, **container):
        command = ["python3", "-u", "-c", python] if python else list(command)
        main = {"name": "main", "image": "fiber-test", "command": command, **container}
        whole = {"restartPolicy": "Never", "containers": [main], **(spec or {})}
        core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": whole})
        return name

    yield make
    core.delete_collection_namespaced_pod("default", grace_period_seconds=0)
    kube.wait_for("pods", lambda pods: not pods)


@pytest.fixture
def until(kube):
    """The pod of a name, when a test of it is true."""

    def wait(name, test):
        def found(pods):
            return [pod for pod in pods if pod["metadata"]["name"] == name and test(pod)]

        return kube.wait_for("pods", found, timeout=50)[0]

    return wait


def ended(pod):
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def running(pod):
    return pod["status"]["phase"] == "Running"


def state(pod):
    (only,) = pod["status"]["containerStatuses"][0]["state"].items()
    return only


def test_a_pod_finds_itself_by_the_api(kube, core, start, until):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    kube.add_account("reader", rules)
    fields = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    spec = {"serviceAccountName": "reader"}
    limits = {"limits": {"cpu": "2"}}
    start("self", python=_ASKS, spec=spec, env=fields, resources=limits)
    until("self", ended)
    assert core.read_namespaced_pod_log("self", "default") == "self True 2\n"


def test_a_pod_whose_memory_is_not_enough_is_killed(start, until):
    program = "data = b'x' * 400_000_000; print(len(data))"
    start("hungry", python=program, resources={"limits": {"memory": "64Mi"}})
    kind, told = state(until("hungry", ended))
    assert (kind, told["exitCode"], told["reason"]) == ("terminated", 137, "OOMKilled")


def test_a_termination_message_is_reported(start, until):
    program = "open('/dev/termination-log', 'w').write('bye'); raise SystemExit(7)"
    start("talks", python=program)
    _, told = state(until("talks", ended))
    assert (told["exitCode"], told["reason"], told["message"]) == (7, "Error", "bye")


def test_a_missing_program_is_no_start(start, until):
    start("absent", "no-such-program")
    _, told = state(until("absent", ended))
    assert (told["exitCode"], told["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in told["message"]


def test_a_missing_image_is_waited_for(core, start, until):
    start("waits", "true", image="registry.invalid/team/app:1")
    pod = until("waits", lambda pod: "ImagePullBackOff" in str(pod["status"]))
    assert pod["status"]["phase"] == "Pending"
    with pytest.raises(client.ApiException, match="trying and failing to pull image"):
        core.read_namespaced_pod_log("waits", "default")


def test_a_deleted_pod_gets_sigterm(core, kube, start, until):
    start("hears", python=_ECHO)
    until("hears", running)
    first_line(core, "hears")
    core.delete_namespaced_pod("hears", "default", grace_period_seconds=30)
    kube.wait_for("pods", lambda pods: not pods)
    lasts = [pod for kind, pod in kube.history("pods") if pod["metadata"]["name"] == "hears"]
    assert state(lasts[-1])[1]["exitCode"] == 5


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(core, kube, start, until):
    start("deaf", "sleep", "1000")
    until("deaf", running)
    began = time.monotonic()
    core.delete_namespaced_pod("deaf", "default", grace_period_seconds=1)
    kube.wait_for("pods", lambda pods: not pods)
    assert time.monotonic() - began >= 1
    assert state(kube.history("pods")[-1][1])[1]["exitCode"] == 137


def test_volumes(core, kube, start, until):
    secret = {"metadata": {"name": "keys"}, "stringData": {"a": "1"}}
    core.create_namespaced_secret("default", secret)
    claim = {
        "metadata": {"name": "nfs"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    core.create_namespaced_persistent_volume_claim("default", claim)
    volumes = [
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
        {"name": "nfs", "persistentVolumeClaim": {"claimName": "nfs"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes]
    writes = "cat /keys/a; ls -lL /keys/a; echo kept > /nfs/x; cat /proc/mounts"
    start("writes", "sh", "-c", writes, spec={"volumes": volumes}, volumeMounts=mounts)
    until("writes", ended)
    log = core.read_namespaced_pod_log("writes", "default")
    assert log.startswith("1-r--------")
    assert "tmpfs /memory tmpfs rw,relatime,size=1024k" in log
    start("reads", "cat", "/nfs/x", spec={"volumes": volumes[1:2]}, volumeMounts=mounts[1:2])
    until("reads", ended)
    assert core.read_namespaced_pod_log("reads", "default") == "kept\n"


def test_a_secret_that_comes_later_is_waited_for(core, start, until):
    volumes = [{"name": "late", "secret": {"secretName": "late"}}]
    mounts = [{"name": "late", "mountPath": "/late"}]
    start("early", "cat", "/late/a", spec={"volumes": volumes}, volumeMounts=mounts)
    until("early", lambda pod: "ContainerCreating" in str(pod["status"]))
    core.create_namespaced_secret(
        "default", {"metadata": {"name": "late"}, "stringData": {"a": "at last"}}
    )
    until("early", ended)
    assert core.read_namespaced_pod_log("early", "default") == "at last"


def test_init_containers_run_first_and_share_volumes(core, start, until):
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    first = {
        "name": "first",
        "image": "fiber-test",
        "command": ["sh", "-c", "echo first > /shared/x"],
        "volumeMounts": mounts,
    }
    spec = {"initContainers": [first], "volumes": [{"name": "shared", "emptyDir": {}}]}
    start("second", "cat", "/shared/x", spec=spec, volumeMounts=mounts)
    assert until("second", ended)["status"]["phase"] == "Succeeded"
    assert core.read_namespaced_pod_log("second", "default") == "first\n"


def test_a_container_that_fails_is_started_again(start, until):
    start("again", "false", spec={"restartPolicy": "OnFailure"})
    pod = until("again", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 2)
    assert pod["status"]["phase"] == "Running"


def test_logs_are_followed_to_the_end(core, start, until):
    program = "import time\nfor n in range(5): print(n); time.sleep(0.1)"
    start("counts", python=program)
    until("counts", running)
    followed = core.read_namespaced_pod_log("counts", "default", follow=True)
    assert followed == "0\n1\n2\n3\n4\n"
    assert core.read_namespaced_pod_log("counts", "default", tail_lines=2) == "3\n4\n"
    stamped = core.read_namespaced_pod_log("counts", "default", tail_lines=1, timestamps=True)
    assert stamped.endswith("Z 4\n")


def test_exec_returns_output_and_code(kube, start, until):
    start("host", "sleep", "1000")
    until("host", running)
    assert run(kube, "sh", "-c", "echo out; echo err >&2; exit 3") == ("out\n", "err\n", 3)
    assert run(kube, "cat", stdin="hello\n") == ("hello\n", "", 0)
    out, err, code = run(kube, "no-such-program")
    assert (out, err) == ("", "")
    assert code == "executable file not found in $PATH"


def test_a_port_of_a_pods_loopback_is_reached(core, kube, start, until):
    start("echo", python=_ECHO)
    until("echo", running)
    first_line(core, "echo")
    with contextlib.closing(kube.client_for()) as api:
        call = client.CoreV1Api(api).connect_get_namespaced_pod_portforward
        ports = portforward(call, "echo", "default", ports="9000,9001")
        socket = ports.socket(9000)
        socket.settimeout(20)
        data = bytes(range(256)) * 1000
        socket.sendall(data)
        got = b""
        while len(got) < len(data):
            got += socket.recv(65536)
        assert got == data
        assert "connection refused" in ports.error(9001)
        ports.close()


def first_line(core, name):
    """Wait until a pod has written something."""
    log = core.read_namespaced_pod_log(name, "default", follow=True, _preload_content=False)
    try:
        return next(iter(log.stream()))
    finally:
        log.close()


def run(kube, *argv, stdin=None):
    with contextlib.closing(kube.client_for()) as api:
        answer = stream(
            client.CoreV1Api(api).connect_get_namespaced_pod_exec,
            "host",
            "default",
            command=list(argv),
            stderr=True,
            stdout=True,
            stdin=stdin is not None,
            tty=False,
            _preload_content=False,
        )
        if stdin is not None:
            answer.write_stdin(stdin)
            answer.close_channel(0)
        answer.run_forever(timeout=30)
        out, err = answer.read_stdout(), answer.read_stderr()
        error = answer.read_channel(3)
        # close() leaves a socket open whose other side has closed before
        answer.sock.shutdown()
        if "executable file not found" in error:
            return out, err, "executable file not found in $PATH"
        code = 0 if '"Success"' in error else int(error.rpartition('"message":"')[2].split('"')[0])
        return out, err, code
