"""How jobs on a host reach this program: as their host sees it, or back over the ssh connection."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import attrs
import paramiko

from fiber.exceptions import BackendUnavailableError
from fiber.model import Reach, ReachKind
from fiber_ssh.config import SshConfig
from fiber_ssh.link import HostLink
from fiber_ssh.shell import run

__all__ = ["Forwarder", "Way"]

log = logging.getLogger("fiber")

_LOOPBACK = "127.0.0.1"
_TRY = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
"""


@attrs.frozen
class Way:
    """A way from a host to a listener of this program."""

    #: what the core is told of it
    reach: Reach
    #: host and port to dial on the host, None where the listener's own are right
    dial: str | None = None


class Forwarder:
    """Finds and keeps the ways from one host; thread-safe.

    Args:
        link: the host's connection.
        config: the settings.
    """

    def __init__(self, link: HostLink, config: SshConfig) -> None:
        self._link = link
        self._config = config
        self._ways: dict[tuple[str, int], Way] = {}
        self._ports: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def way(self, url: str) -> Way:
        """The way to a listener; found once.

        Raises:
            BackendUnavailableError: the host cannot be asked, or there is no way.
        """
        parts = urlsplit(url)
        there = (parts.hostname or _LOOPBACK, parts.port or 0)
        with self._lock:
            if there not in self._ways:
                self._ways[there] = self._find(there)
            return self._ways[there]

    def known(self) -> Way | None:
        """A way that was found."""
        with self._lock:
            return next(iter(self._ways.values()), None)

    def restore(self) -> None:
        """The connection was made again: open the ports there that it had opened.

        Raises:
            BackendUnavailableError: the connection dropped again.
        """
        with self._lock:
            for there, port in self._ports.items():
                try:
                    self._open(there, port)
                except paramiko.SSHException as error:
                    # the host still holds it for the connection that dropped
                    log.warning(
                        "host %s does not give back port %d yet (%s); jobs there that dial it wait",
                        self._link.host.name,
                        port,
                        error,
                    )
                    self._ways.pop(there, None)

    def _find(self, there: tuple[str, int]) -> Way:
        name = self._link.host.name
        if self._config.reach != "reversed":
            for host in self._candidates(there[0]):
                if self._answers(host, there[1]):
                    dial = f"[{host}]:{there[1]}" if ":" in host else f"{host}:{there[1]}"
                    return Way(Reach(ReachKind.DIRECT, f"{name} reaches {dial}"), dial)
            if self._config.reach == "direct":
                tried = ", ".join(self._candidates(there[0]))
                msg = (
                    f"host {name} does not reach port {there[1]} of this machine at {tried}; name "
                    "the address with FIBER_SSH_ADDRESS, or set FIBER_SSH_REACH=reversed"
                )
                raise BackendUnavailableError(msg)
        try:
            port = self._open(there, 0)
        except paramiko.SSHException as error:
            msg = (
                f"host {name} reaches this machine neither by itself nor by the ssh connection "
                f"({error}); its sshd needs AllowTcpForwarding yes"
            )
            raise BackendUnavailableError(msg) from error
        self._ports[there] = port
        why = f"{name} reaches this program by port {port} there, forwarded over the ssh connection"
        log.info("%s", why)
        return Way(Reach(ReachKind.REVERSED, why), f"{_LOOPBACK}:{port}")

    def _candidates(self, advertised: str) -> list[str]:
        if self._config.address is not None:
            return [self._config.address]
        about = self._link.about
        seen = None if about is None else about.ours
        named = None if advertised in (_LOOPBACK, "0.0.0.0", "::", "localhost") else advertised  # noqa: S104 - compared
        return list(dict.fromkeys(host for host in (seen, named) if host))

    def _answers(self, host: str, port: int) -> bool:
        argv = [self._link.host.python, "-I", "-S", "-c", _TRY, host, str(port)]
        answer = run(self._link.transport, argv, timeout=self._config.connect_timeout)
        return answer.code == 0

    def _open(self, there: tuple[str, int], port: int) -> int:
        handler = _handler(there)
        transport = self._link.transport
        opened: int = transport.request_port_forward(_LOOPBACK, port, handler)
        return opened or port


def _handler(
    there: tuple[str, int],
) -> Callable[[paramiko.Channel, tuple[str, int], tuple[str, int]], None]:
    def came(channel: paramiko.Channel, _: tuple[str, int], __: tuple[str, int]) -> None:
        # on the transport's own thread, which must not wait
        threading.Thread(target=_join, args=(channel, there), daemon=True).start()

    return came


def _join(channel: paramiko.Channel, there: tuple[str, int]) -> None:
    host = _LOOPBACK
    try:
        sock = socket.create_connection((host, there[1]), timeout=5.0)
    except OSError:
        try:
            sock = socket.create_connection(there, timeout=5.0)
        except OSError as error:
            log.debug("nobody listens at %s: %s", there, error)
            channel.close()
            return
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_copy, args=(sock.recv, channel.sendall), daemon=True)
    back.start()
    try:
        _copy(channel.recv, sock.sendall)
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        # the connection under it may be closed already
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()
        back.join()
        sock.close()


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := read(256 * 1024):
            write(data)
