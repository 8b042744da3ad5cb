"""Routes between jobs and this program: dialled addresses, or streams where a host cannot dial."""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import attrs

from fiber.backend_parts.threads import run_at_once
from fiber.exceptions import BackendUnavailableError
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.config import SshConfig, SshTiming
from fiber_ssh.exec_channel import run
from fiber_ssh.streams import stream_refusal

log = logging.getLogger("fiber")

_LOOPBACK = "127.0.0.1"
_UNSPECIFIED = (_LOOPBACK, "0.0.0.0", "::", "localhost")  # noqa: S104 - compared
# program for a host: tells which of some addresses it can dial; a firewall may not answer at all
_DIAL_PROGRAM = """
import json, socket, sys, threading
places = json.loads(sys.argv[1])
found = [False] * len(places)
def dial(number):
    try:
        socket.create_connection(places[number], 3).close()
    except OSError:
        return
    found[number] = True
threads = [threading.Thread(target=dial, args=(n,)) for n in range(len(places))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(found))
"""

Address = tuple[str, int]


@attrs.frozen
class Route:
    """Route from a job to its parent."""

    #: ``HOST:PORT`` to dial; None for the parent's advertised address
    dial_address: str | None = None
    #: True where this program opens streams into the job instead
    uses_streams: bool = False
    #: True where other hosts do not dial the job either
    is_isolated: bool = False


@attrs.frozen
class _Reachability:
    """Addresses that one host can dial."""

    #: address of this program; None where it reaches none
    program: Address | None
    #: the next host where it does not reach that, for messages
    unreached: str = ""


class Router:
    """Chooses the routes of jobs by what their hosts can dial; thread-safe.

    The first job has all connected hosts probed: each dials this program, and the next host. If one
    of these fails, all jobs use streams: two jobs connect to each other directly or through this
    program, and through it only where both have streams. Where a host does not reach the next one,
    hosts do not dial each other at all, since a firewall that drops packets costs a timeout.

    A lock is held while hosts are probed.

    Args:
        config: the settings.
        links: returns the connections of all hosts, in the user's order.
        timing: durations.
    """

    def __init__(
        self,
        config: SshConfig,
        links: Callable[[], Sequence[AgentLink]],
        timing: SshTiming = SshTiming(),
    ) -> None:
        self._config = config
        self._timing = timing
        self._links = links
        self._lock = threading.Lock()
        self._program: Address | None = None
        self._reachable: dict[str, _Reachability] = {}
        # hosts whose sshd was seen to open streams
        self._stream_hosts: set[str] = set()
        self._all_streamed = config.reach == "reversed"
        self._isolated = self._probed = False

    def route(self, link: AgentLink, urls: Sequence[str]) -> Route:
        """Choose the route of a job on a host to its parent.

        Args:
            link: the host's connection.
            urls: addresses of the parent. The first call has those of this program itself.

        Raises:
            BackendUnavailableError: the host is not connected, or there is no route.
        """
        if not urls and not self._all_streamed:
            return Route()
        parent = _parse_address(urls)
        with self._lock:
            if not self._probed:
                self._probed = True
                self._program = parent
                self._probe_all([one for one in self._links() if one.is_up])
            if not self._all_streamed and link.host.name not in self._reachable:
                # it was connected later, or its probe failed
                self._probe(link, None)
            found = None if self._all_streamed else self._reachable[link.host.name]
        if found is None or parent is None:
            return self._stream_route(link, "")
        if found.program is None:
            return self._stream_route(link, self._explain_unreached(link))
        if parent != self._program:
            # the parent is a job's process: hosts reach each other
            return Route()
        host, port = found.program
        return Route(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    def _probe_all(self, links: Sequence[AgentLink]) -> None:
        """Probe all hosts at once, and decide between dialling and streams."""
        others = [*links[1:], links[0]] if len(links) > 1 else [None] * len(links)
        asked = zip(links, others, strict=True)
        run_at_once(functools.partial(self._probe_or_log, *pair) for pair in asked)
        if self._config.reach == "direct":
            return
        for name, found in self._reachable.items():
            self._isolated = self._isolated or bool(found.unreached)
            unreached = found.unreached or ("this program" if found.program is None else "")
            if unreached and not self._all_streamed:
                log.info("host %s cannot dial %s: jobs meet by streams", name, unreached)
        self._all_streamed |= self._isolated or any(
            f.program is None for f in self._reachable.values()
        )

    def _probe_or_log(self, link: AgentLink, other: AgentLink | None) -> None:
        try:
            self._probe(link, other)
        except BackendUnavailableError as error:
            # its first job probes it again
            log.debug("%s", error)

    def _probe(self, link: AgentLink, other: AgentLink | None) -> None:
        """Make a host dial this program, and another host.

        Raises:
            BackendUnavailableError: it is not connected, or gives no answer.
        """
        addresses = [] if self._all_streamed else self._candidates(link)
        next_host = None if other is None or other.info is None else other.info.ssh_address
        asked = [*addresses, next_host] if next_host else addresses
        argv = [link.host.python, "-I", "-S", "-c", _DIAL_PROGRAM, json.dumps(asked)]
        words = ""
        try:
            answer = run(link.transport, argv, timeout=self._timing.route_probe)
            words = answer.errors.strip()[-500:] or f"exit code {answer.code}"
            dialled = [bool(one) for one in json.loads(answer.output)]
        except (BackendUnavailableError, ValueError) as error:
            msg = f"host {link.host.name} does not report what it can dial: {words or error}"
            raise BackendUnavailableError(msg) from error
        reached = [
            address for address, is_reached in zip(asked, dialled, strict=True) if is_reached
        ]
        unreached = ""
        if (
            other is not None
            and next_host
            and (next_host not in reached or _is_own_loopback(next_host, link))
        ):
            unreached = f"host {other.host.name}"
        program = next((address for address in addresses if address in reached), None)
        self._reachable[link.host.name] = _Reachability(program, unreached)

    def _candidates(self, link: AgentLink) -> list[Address]:
        """Addresses at which a host may reach this program."""
        if self._program is None:
            return []
        advertised, port = self._program
        if self._config.address is not None:
            return [(self._config.address, port)]
        seen = None if link.info is None else link.info.client_address
        named = None if advertised in _UNSPECIFIED else advertised
        return [(host, port) for host in dict.fromkeys((seen, named)) if host]

    def _explain_unreached(self, link: AgentLink) -> str:
        """Text on a host that cannot dial this program.

        Raises:
            BackendUnavailableError: the settings demand that it dials.
        """
        tried = ", ".join(host for host, _ in self._candidates(link)) or "any address"
        words = f"host {link.host.name} does not reach this machine at {tried}"
        if self._config.reach == "direct":
            msg = (
                f"{words}; name the address with FIBER_SSH_ADDRESS, or set FIBER_SSH_REACH=reversed"
            )
            raise BackendUnavailableError(msg)
        return f"{words}, and "

    def _stream_route(self, link: AgentLink, before: str) -> Route:
        """A route by streams.

        Raises:
            BackendUnavailableError: the host's sshd opens none.
        """
        name = link.host.name
        if name not in self._stream_hosts:
            why = stream_refusal(link.transport, self._config.connect_timeout)
            if why:
                msg = (
                    f"{before}sshd of host {name} opens no streams into jobs there ({why}); "
                    "its configuration needs AllowTcpForwarding yes, or local"
                )
                raise BackendUnavailableError(msg)
            self._stream_hosts.add(name)
        return Route(uses_streams=True, is_isolated=self._isolated)


def _parse_address(urls: Sequence[str]) -> Address | None:
    """Host and port of the first URL that is dialled directly."""
    for url in urls:
        if not url.startswith("tunnel+"):
            parts = urlsplit(url)
            return parts.hostname or _LOOPBACK, parts.port or 0
    return None


def _is_own_loopback(next_host: Address, link: AgentLink) -> bool:
    """True where another host's address is loopback, which leads a host to itself."""
    mine = None if link.info is None else link.info.address
    return next_host[0] in (_LOOPBACK, "::1") and mine != next_host[0]
