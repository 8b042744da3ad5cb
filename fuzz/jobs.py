"""What jobs, their supervisors and agents, frameworks, commands and a cluster's streams say."""

from __future__ import annotations

import contextlib
import io
import queue
import socket
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fiber_ssh.agent_link
from fiber._agent.resources.nvidia import NvidiaProvider
from fiber._agent.supervisor import messages as supervisor
from fiber._launch.code import CodeServer
from fiber._ring import command_rings
from fiber._ring.frameworks import horovod, torchrun
from fiber._ring.mpi import member_agent
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    FiberError,
    ResourceError,
    WireError,
)
from fiber_k8s import pod_exec, port_forward
from fiber_k8s.websocket_client import WebSocket
from fiber_ssh import exec_channel, submission
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.config import SshConfig, SshTiming
from fiber_ssh.hosts import Host
from fuzz.target import target


@target(WireError)
def supervisor_messages(data: bytes) -> None:
    """Messages to a supervisor: plain values of the protocol's own classes, or WireError."""
    decoder = supervisor.Decoder()
    decoder.feed(data)
    assert all(type(message).__module__.startswith("fiber.") for message in decoder.messages())


def _channel(data: bytes) -> Any:
    """Return a channel of paramiko's to a program that said something and ended."""
    return mock.Mock(
        recv=io.BytesIO(data).read, recv_stderr=io.BytesIO().read, recv_exit_status=lambda: 1
    )


@target()
def agent_answers(data: bytes) -> None:
    """What a host's agent sends to a program: the connection ends, with the reason, and no more."""

    def take(_: AgentLink, found: Any) -> None:
        for record in found if isinstance(found, list) else [found]:
            submission.read_record(record, "ssh", "host")

    told: Any = {"on_jobs": take, "on_job": take, "on_beat": mock.Mock(), "on_change": mock.Mock()}
    host, config = Host(name="host"), SshConfig(hosts="host")
    link = AgentLink(host, config, run_id="r", lease=1, timing=SshTiming(), **told)
    opened = _channel(data), None
    with mock.patch.object(fiber_ssh.agent_link, "open_agent", return_value=opened):
        link._serve(mock.Mock())
    assert link.failure


@target(BackendUnavailableError)
def agent_greeting(data: bytes) -> None:
    """The first line of a host's agent among what its shell prints: facts, or what to mend."""
    exec_channel._read_greeting(_channel(data), "host", "python3")


@target(ResourceError)
def gpus(data: bytes) -> None:
    """What a probe for GPUs prints on a host: devices, or ResourceError."""
    NvidiaProvider().parse(data.decode("utf-8", "replace"))


@target()
def code_questions(data: bytes) -> None:
    """A worker's question for a module or file of the program: an answer each, never a dead thread."""
    answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with contextlib.closing(CodeServer()) as server:
        server.submit(data, answers.put)
        answers.get(timeout=20)


@target()
def mpi_commands(data: bytes) -> None:
    """An agent of mpirun at the command socket, which a thread serves: it is closed in the end."""
    one, other = socket.socketpair()
    with one, open("/dev/null", "rb") as file:
        socket.send_fds(one, [data[:4096]], [file.fileno()] * 3) if data else None
        one.shutdown(socket.SHUT_WR)
        member_agent.CommandSocket._serve(mock.Mock(), other)
    assert other.fileno() < 0


@target(FiberError)
def ring_answer(data: bytes) -> None:
    """The answer of a ring's owner at its control socket: any value, or FiberError."""
    command_rings.read_answer(data)


@target(WireError)
def rendezvous(data: bytes) -> None:
    """What a torchrun or a member with Horovod asks rank 0: an answer, or WireError; no pickle is read."""
    torchrun.parse(data[:40].decode("utf-8", "replace"))
    state, store = torchrun.VersionedState(), horovod.Store(2)
    for request in data.split(b"|"):
        with contextlib.suppress(WireError):
            assert len(state.answer(request)) <= len(data) + 64
        assert len(store.answer(request)) <= len(data) + 64


@target()
def horovod_http(data: bytes) -> None:
    """What a rank sends to Horovod's rendezvous by HTTP: the connection is answered or closed."""
    server: Any = SimpleNamespace(answer=horovod.Store(2).answer, timeout=5)
    ours, theirs = socket.socketpair()
    with ours, theirs, mock.patch.object(horovod, "may_connect", return_value=True):
        theirs.send(data)
        theirs.shutdown(socket.SHUT_WR)
        horovod._Handler(ours, ("127.0.0.1", 1), server)


@target(BackendError)
def websocket(data: bytes) -> None:
    """Frames of a WebSocket in pieces: messages, how a program ended among them, or BackendError."""
    ours, server = socket.socketpair()
    with server, contextlib.closing(WebSocket(ours)) as received:
        for start in range(0, len(data), 61):
            server.send(data[start : start + 61])
            for message in received.receive() or ():
                assert len(message) <= len(data)
                if message[:1] == b"\3":
                    pod_exec.exit_code_of(message[1:])
            if received.is_closed:
                break


@target()
def port_forwarding(data: bytes) -> None:
    """A port-forward's WebSocket: bytes for the connection, and its end; nothing is raised."""
    ours, server = socket.socketpair()
    local, user = socket.socketpair()
    with server, local, user, contextlib.closing(WebSocket(ours)) as received:
        for sock in (local, server):
            sock.setblocking(False)
        server.send(data[: 2**16])
        # it is never woken: what has come is read at once
        port_forward._Forward(mock.Mock(), "pod", received, local, mock.Mock()).begin()
