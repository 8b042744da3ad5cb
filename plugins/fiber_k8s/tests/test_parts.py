"""Small parts that need no cluster: errors, amounts, addresses, frames, logs, one's own pod."""

import base64
import contextlib
import json
import random
import socket
import tarfile
from types import SimpleNamespace

import pytest
from websocket import ABNF, frame_buffer

from fiber.exceptions import BackendError
from fiber.model import Interface
from fiber_k8s import file_copy
from fiber_k8s.address import choose, is_outside
from fiber_k8s.capacity import allocatable, requested
from fiber_k8s.client import advice, is_transient, status_message
from fiber_k8s.config import K8sConfig, K8sTiming
from fiber_k8s.flow_control import RateLimiter
from fiber_k8s.in_pod import JOB_VARIABLE, pod_evidence, read_own_pod
from fiber_k8s.lifecycle import latest_messages
from fiber_k8s.logs import LogCursor, follow, last_lines
from fiber_k8s.websocket_client import WebSocket

QUOTA = (
    'Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been '
    "modified; please apply your changes to the latest version and try again"
)
NO_ACCOUNT = 'pods "a" is forbidden: error looking up service account lab/{0}: serviceaccount "{0}" not found'
NO_RIGHT = (
    'pods is forbidden: User "system:serviceaccount:lab:jobs" cannot create resource "pods" in API '
    'group "" in the namespace "lab"'
)


class TestErrors:
    @pytest.mark.parametrize(
        "body, told",
        [
            ('{"kind": "Status", "message": "no", "reason": "Forbidden"}', ("no", "Forbidden")),
            # a proxy's page
            ("<html>Bad Gateway</html>\n", ("<html>Bad Gateway</html>", "")),
            ('["no status"]', ('["no status"]', "")),
        ],
    )
    def test_a_status_is_read(self, body, told):
        assert status_message(body) == told

    @pytest.mark.parametrize(
        "status, message, found",
        [
            (401, "Unauthorized", "log in again"),
            (
                403,
                NO_RIGHT,
                "fiber k8s rbac --namespace lab --service-account jobs | kubectl apply -f -",
            ),
            (
                403,
                NO_ACCOUNT.format("fiber"),
                "fiber k8s rbac --namespace lab | kubectl apply -f -",
            ),
            (403, NO_ACCOUNT.format("jobs"), "--namespace lab --service-account jobs | kubectl"),
            (403, NO_ACCOUNT.format("default"), "kubectl get sa -n lab"),
            (403, 'violates PodSecurity "restricted:latest": …', "FIBER_K8S_SECURITY=restricted"),
            (403, "unable to create … because it is being terminated", "FIBER_K8S_NAMESPACE"),
            (404, 'namespaces "lab" not found', "kubectl create namespace lab"),
        ],
    )
    def test_advice_is_part_of_the_error(self, status, message, found):
        assert found in advice(status, message)

    def test_the_clusters_message_alone_where_it_is_sufficient(self):
        assert advice(403, "exceeded quota: few, requested: pods=1") == advice(404, "") == ""

    @pytest.mark.parametrize(
        "status, message, expected",
        [
            (409, QUOTA, True),
            (409, QUOTA.replace("quotas ", "quotas.quota.openshift.io "), True),
            (409, 'pods "a" already exists', False),
            (403, NO_ACCOUNT.format("default"), True),
            (403, NO_ACCOUNT.format("jobs"), False),
            (500, "failed calling webhook: context deadline exceeded", True),
            (503, "the server is currently unable to handle the request", True),
            (422, "is invalid", False),
        ],
    )
    def test_transient_errors_are_distinguished_from_final_ones(self, status, message, expected):
        assert is_transient(status, message) is expected


def test_the_last_word_of_each_pod_counts_that_says_why_its_container_is_not_made():
    def event(pod, message, reason="FailedMount", **times):
        return {"involvedObject": {"name": pod}, "reason": reason, "message": message, **times}

    events = [
        event("a", "second", lastTimestamp="2026-11-21T12:00:09Z"),
        event("a", "first", lastTimestamp="2026-11-21T12:00:00Z"),
        event("b", "none left", lastTimestamp=None, eventTime="2026-11-21T12:00:01Z"),
        event("b", "no DNS", "MissingClusterDNS", lastTimestamp="2026-11-21T12:00:09Z"),
        event("c", "too many nameservers", "DNSConfigForming"),
    ]
    assert latest_messages(events) == {"a": "FailedMount: second", "b": "FailedMount: none left"}


class TestAmounts:
    @pytest.mark.parametrize(
        "text, number",
        [
            ("24580016Ki", 24580016 * 1024),
            ("1500M", 1.5e9),
            ("3920m", 3.92),
            ("1e3", 1000),
            ("12E", 12e18),
        ],
    )
    def test_they_are_read_as_nodes_write_them(self, text, number):
        node = {"status": {"allocatable": {"thing": text}}}
        assert allocatable(node) == {"thing": pytest.approx(number)}
        assert allocatable({"metadata": {"name": "new"}}) == {}

    def test_containers_add_up_and_what_runs_before_them_takes_their_place(self):
        def container(cpu, **more):
            return {"resources": {"requests": {"cpu": cpu}}, **more}

        spec = {
            "containers": [container("2"), container("500m")],
            "initContainers": [container("4"), container("1", restartPolicy="Always")],
            "overhead": {"cpu": "250m"},
        }
        assert requested({"spec": spec}) == {"cpu": 4.25}

    def test_a_limit_is_a_request_where_none_is_made(self):
        resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "99"}}
        pod = {"spec": {"containers": [{"resources": resources}]}}
        assert requested(pod) == {"cpu": 1, "nvidia.com/gpu": 99}
        assert requested({"spec": {"containers": [{"name": "main"}]}}) == {}


INSIDE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
LOOPBACK = Interface(name="lo", address="127.0.0.1", is_loopback=True)
ETH0 = Interface(name="eth0", address="10.244.0.7")
OTHER = Interface(name="net1", address="192.168.9.7")


class TestAddresses:
    @pytest.mark.parametrize(
        "environ, interfaces, way, setting, url",
        [
            # in a pod it is the one that leads to the API, else the first outward one
            (INSIDE, (LOOPBACK, OTHER, ETH0), "10.244.0.7", None, "tls+tcp://10.244.0.7:0"),
            (INSIDE, (), "fd00::7", None, "tls+tcp://[fd00::7]:0"),
            (INSIDE, (LOOPBACK, ETH0), None, None, "tls+tcp://10.244.0.7:0"),
            # a job has its master's settings and another address
            (
                {**INSIDE, JOB_VARIABLE: "job"},
                (ETH0,),
                "10.244.0.7",
                "203.0.113.5",
                "tls+tcp://10.244.0.7:0",
            ),
            # outside only local streams dial it
            ({}, (LOOPBACK, ETH0), None, None, "tls+tcp://127.0.0.1:0"),
            ({}, (ETH0,), None, "10.244.0.7", "tls+tcp://10.244.0.7:0"),
        ],
    )
    def test_where_a_program_listens(self, environ, interfaces, way, setting, url):
        found = choose(K8sConfig(address=setting), environ, interfaces, lambda host, port: way)
        assert (found.bind_url, found.advertise_host) == (url, None)

    def test_one_that_is_not_ours_is_advertised(self):
        config = K8sConfig(address="203.0.113.5")
        found = choose(config, {}, [ETH0], lambda host, port: None)
        assert (found.bind_url, found.advertise_host) == ("tls+tcp://0.0.0.0:0", "203.0.113.5")
        assert is_outside(K8sConfig(), {})
        assert not is_outside(K8sConfig(), INSIDE)

    def test_a_pod_without_any_is_an_error_with_the_setting(self):
        with pytest.raises(BackendError, match="127.0.0.1.*FIBER_K8S_ADDRESS"):
            choose(K8sConfig(), INSIDE, [LOOPBACK], lambda host, port: None)


class TestAPodsKnowledgeOfItself:
    @pytest.fixture(autouse=True)
    def account(self, tmp_path):
        claims = {"kubernetes.io": {"pod": {"name": "trainer-0"}}}
        middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        (tmp_path / "token").write_text(f"a.{middle}.c")
        (tmp_path / "namespace").write_text("research\n")

    def test_it_stands_in_its_token(self, tmp_path):
        found = read_own_pod(tmp_path)
        assert (found.namespace, found.name) == ("research", "trainer-0")

    @pytest.mark.parametrize(
        "root",
        [
            "/var/lib/kubelet/pods/2f1c0a3b-1111-2222-3333-444455556666/containers/main/6d5f1a3b",
            # a disk of its own, a sub-volume
            "/kubelet/pods/2f1c0a3b-1111-2222-3333-444455556666/containers/main/6d5f1a3b",
            "/@/var/lib/k0s/kubelet/pods/2f1c/containers/main/0",
        ],
    )
    def test_its_container_is_found_by_its_mounts(self, tmp_path, root):
        mounts = tmp_path / "mountinfo"
        first = "1190 1180 0:52 / / rw,relatime - overlay overlay rw\n"
        mounts.write_text(
            f"{first}1200 1190 8:1 /var/lib/kubelet/pods/2f1c/etc-hosts /etc/hosts rw - ext4 /dev/sda rw\n"
            f"1201 1190 8:1 {root} /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"
        )
        assert read_own_pod(tmp_path, mounts).container == "main"
        mounts.write_text(first)
        read_own_pod.cache_clear()
        assert read_own_pod(tmp_path, mounts).container is None

    def test_it_takes_a_service_and_a_token(self, tmp_path):
        assert "KUBERNETES_SERVICE_HOST" in pod_evidence(INSIDE, tmp_path)
        assert pod_evidence({}, tmp_path) is None
        (tmp_path / "token").unlink()
        assert pod_evidence(INSIDE, tmp_path) is None


def test_a_burst_passes_and_the_rest_is_spread():
    slept = []
    limiter = RateLimiter(3, 10.0, clock=lambda: 0.0, sleep=slept.append)
    for _ in range(5):
        limiter.acquire()
    assert slept == [pytest.approx(0.1), pytest.approx(0.2)]


def of_server(opcode, body, final=True):
    """A frame as a server writes it: not masked."""
    return ABNF(int(final), opcode=opcode, mask_value=0, data=body).format()


@pytest.fixture
def websocket():
    """A WebSocket of ours, and the server's socket."""
    ours, server = socket.socketpair()
    with server, contextlib.closing(WebSocket(ours)) as made:
        server.settimeout(30)
        yield made, server


class TestWebSocket:
    @pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 65534, 65535, 65536])
    def test_a_clients_frames_are_masked_and_a_servers_parsed(self, websocket, size):
        ours, server = websocket
        body = random.Random(size).randbytes(size)
        ours.send(b"\x00" + body)
        frame = frame_buffer(server.recv, True).recv_frame()
        assert (frame.opcode, frame.mask_value, frame.data) == (
            ABNF.OPCODE_BINARY,
            1,
            b"\x00" + body,
        )
        server.sendall(of_server(ABNF.OPCODE_BINARY, body))
        found = []
        while not found:
            found = ours.receive()
        assert found == [body]
        assert ours.receive() is None

    def test_they_may_come_in_any_pieces_and_a_message_in_several_frames_with_a_ping_between(
        self, websocket
    ):
        ours, server = websocket
        data = of_server(ABNF.OPCODE_BINARY, b"a" * 200)
        data += of_server(ABNF.OPCODE_TEXT, b"a", final=False) + of_server(ABNF.OPCODE_PING, b"?")
        data += of_server(ABNF.OPCODE_CONT, b"b") + of_server(ABNF.OPCODE_CLOSE, b"\x03\xe8")
        found = []
        for n in range(len(data)):
            assert not ours.is_closed
            server.send(data[n : n + 1])
            found += ours.receive()
        assert (found, ours.is_closed) == ([b"a" * 200, b"ab"], True)
        answers = frame_buffer(server.recv, True)
        assert [answers.recv_frame().opcode for _ in range(2)] == [
            ABNF.OPCODE_PONG,
            ABNF.OPCODE_CLOSE,
        ]

    @pytest.mark.parametrize(
        "data",
        [
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 7\r\nContent-Type: text/plain\r\n\r\nno more of it",
            b"\x82\x81abcdx",
            b"\x82\x7f\x00" + b"\xff" * 7,
            of_server(ABNF.OPCODE_TEXT, b"a", final=False) + of_server(ABNF.OPCODE_TEXT, b"b"),
        ],
        ids=["HTTP", "masked", "too large", "unfinished"],
    )
    def test_other_bytes_are_no_websocket(self, websocket, data):
        ours, server = websocket
        server.send(data)
        with pytest.raises(BackendError, match="WebSocket"):
            ours.receive()

    def test_what_cannot_be_sent_yet_waits_and_a_lost_connection_is_an_end(self, websocket):
        ours, server = websocket
        message = bytes(2**20)
        while not ours.wants_write:
            ours.send(message)
        buffered = ours.buffered
        assert buffered > 0
        assert server.recv(2**16)
        ours.flush()
        assert ours.buffered < buffered
        server.close()
        while ours.wants_write:
            ours.flush()
        while not ours.is_closed:
            ours.receive()
        ours.send(message)
        assert ours.buffered == 0


#: recorded from a node that had removed the container
GONE = b"unable to retrieve container logs for containerd://646ee4c36f22f6e2"


class Node:
    """Answers in turn, the last answer again and again."""

    timing = K8sTiming()

    class Answer:
        def __init__(self, *chunks):
            self._chunks = chunks

        def stream(self, size, decode_content):
            yield from self._chunks

        def close(self):
            pass

    def __init__(self, *answers):
        self._answers = [*answers]

    def path(self, *words):
        return "/".join(words)

    def open(self, verb, path, doing, *, query, timeout):
        chunks = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return self.Answer(*chunks)


class TestLogs:
    def test_lines_are_whole_however_they_come(self):
        node = Node([b"on", b"e\ntwo\nth", b"ree"])
        assert last_lines(node, "pod", 3) == ("one", "two", "three")

    @pytest.mark.parametrize("chunks", [[GONE], [GONE[:20], GONE[20:]]])
    def test_a_nodes_words_about_a_log_that_is_gone_are_no_line_of_it(self, chunks, caplog):
        assert last_lines(Node(chunks), "pod-1", 3) == ()
        assert "the log of pod-1 is gone" in caplog.text
        # but a program may write the same
        said = b"it said: " + GONE
        assert last_lines(Node([said]), "pod", 3) == (said.decode(),)

    def test_nor_are_they_where_a_log_was_followed_until_its_container_went(self, caplog):
        stamped = b"2026-11-22T07:00:01.5Z one\n"
        lines = follow(Node([stamped, GONE], [GONE]), "pod", to_the_end=True)
        assert list(lines) == ["one"]
        assert caplog.text == ""


def told(cursor, *lines, **how):
    return list(cursor.unread(iter(lines), **how))


class TestTheCursorOfALog:
    @pytest.mark.parametrize(
        "stamp",
        [
            "2026-11-21T12:00:05.123456789Z",
            "2026-11-21T05:30:05.123456789-06:30",
            "2026-11-21T12:00:05Z",
        ],
    )
    def test_what_comes_next_is_asked_for_in_utc_whatever_zone_the_node_is_in(self, stamp):
        cursor = LogCursor()
        assert cursor.since() == {}
        assert told(cursor, f"{stamp} a") == ["a"]
        assert cursor.since() == {"sinceTime": "2026-11-21T12:00:04Z"}

    @pytest.mark.parametrize(
        "lines, later",
        [
            (["5.000000001Z a", "5.000000002Z b", "5.000000002Z c"], "6.1Z x"),
            # equal lines of one moment are as many as they are
            (["5.1Z tick"], "5.1Z tick"),
            # two streams, written out of order
            (["5.000000009Z out", "4.999999999Z err"], "4.999999998Z x"),
            # zeros at the end of a time make it no later
            (["5.5Z a", "5.49Z b", "5.51Z c"], "6Z x"),
        ],
        ids=["one after another", "one moment", "two streams", "zeros"],
    )
    def test_repeated_lines_are_dropped_and_no_other(self, lines, later):
        cursor = LogCursor()
        words = [line.split()[1] for line in (*lines, later)]
        *before, new = [f"2026-11-21T12:00:0{line}" for line in (*lines, later)]
        assert told(cursor, *before) == words[:-1]
        assert told(cursor, *before, new) == words[-1:]
        assert told(cursor, *before, new) == []

    def test_lines_before_the_tail_are_skipped_afterwards_too(self):
        cursor = LogCursor()
        early, *tail = [f"2026-11-21T12:00:05.{part}Z {part}" for part in (1, 3, 2)]
        assert told(cursor, *tail, is_tail=True) == ["3", "2"]
        assert told(cursor, early, *tail, "2026-11-21T12:00:05.4Z new") == ["new"]


def test_a_pod_does_not_choose_the_name_of_a_file_that_is_copied_from_it(tmp_path, monkeypatch):
    def answer(*_, write, **__):
        return write(1, tarfile.TarInfo(".bashrc").tobuf()) or 0

    monkeypatch.setattr(file_copy, "execute", answer)
    cluster = SimpleNamespace(pod=str)
    with pytest.raises(BackendError, match=r"pod p sent for 'model.pt' .* '.bashrc' in it was not"):
        file_copy.copy(None, cluster, "python3", None, "p:/model.pt", str(tmp_path))
    assert not list(tmp_path.iterdir())
