"""How jobs reach this program and each other: by dialling, or by streams where some host cannot dial."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import attrs

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.config import SshConfig
from fiber_ssh.link import HostLink
from fiber_ssh.shell import run
from fiber_ssh.streams import refusal

__all__ = ["Reaching", "Way"]

log = logging.getLogger("fiber")

_LOOPBACK = "127.0.0.1"
_ANYWHERE = (_LOOPBACK, "0.0.0.0", "::", "localhost")  # noqa: S104 - compared
# which of some places can be dialled; a firewall may answer nothing at all
_TRY = """
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

Place = tuple[str, int]


@attrs.frozen
class Way:
    """How a job reaches its parent."""

    #: host and port to dial, None where the parent's own are right
    dial: str | None = None
    #: True where streams are opened into the job
    is_streamed: bool = False
    #: True where other hosts are not to dial it either
    is_apart: bool = False


@attrs.frozen
class _Found:
    """What one host can dial."""

    #: where it reaches this program
    program: Place | None
    #: another host that it does not reach
    missed: str = ""


class Reaching:
    """Finds out once for all hosts how jobs meet; thread-safe.

    All jobs go by streams if one host of those that were there at first cannot dial this program,
    or the next host: two jobs meet by dialling or at the program, and there only where both have
    streams. Where a host does not reach the next one, none is dialled, for it may take long to
    learn that nobody answers.

    Args:
        config: the settings.
        links: gives the connections of all hosts, in the user's order.
    """

    def __init__(self, config: SshConfig, links: Callable[[], Sequence[HostLink]]) -> None:
        self._config = config
        self._links = links
        self._lock = threading.Lock()
        self._program: Place | None = None
        self._found: dict[str, _Found] = {}
        # hosts whose sshd opens streams
        self._open: set[str] = set()
        self._all_streamed = config.reach == "reversed"
        self._apart = self._surveyed = False

    def way(self, link: HostLink, urls: Sequence[str]) -> Way:
        """How a job on a host reaches its parent.

        Args:
            link: the host's connection.
            urls: where the parent listens; those of the program itself come first of all.

        Raises:
            BackendUnavailableError: the host cannot be asked, or there is no way.
        """
        if not urls and not self._all_streamed:
            return Way()
        parent = _place(urls)
        with self._lock:
            if not self._surveyed:
                self._surveyed = True
                self._program = parent
                self._survey([one for one in self._links() if one.is_up])
            if not self._all_streamed and link.host.name not in self._found:
                # it came later, or could not be asked
                self._ask(link, None)
            found = None if self._all_streamed else self._found[link.host.name]
        if found is None or parent is None:
            return self._streamed(link, "")
        if found.program is None:
            return self._streamed(link, self._unreached(link))
        if parent != self._program:
            # a job's process, which hosts reach as they reach each other
            return Way()
        host, port = found.program
        return Way(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    def _survey(self, links: Sequence[HostLink]) -> None:
        """Have all hosts dial this program, and each the next one, at once; decide."""
        others = [*links[1:], links[0]] if len(links) > 1 else [None] * len(links)
        asked = zip(links, others, strict=True)
        threads = [threading.Thread(target=self._try, args=pair, daemon=True) for pair in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._config.reach == "direct":
            return
        for name, found in self._found.items():
            self._apart = self._apart or bool(found.missed)
            missed = found.missed or ("this program" if found.program is None else "")
            if missed and not self._all_streamed:
                log.info("host %s cannot dial %s: jobs meet by streams", name, missed)
        self._all_streamed |= self._apart or any(f.program is None for f in self._found.values())

    def _try(self, link: HostLink, other: HostLink | None) -> None:
        try:
            self._ask(link, other)
        except BackendUnavailableError as error:
            # whoever has a job for it asks again
            log.debug("%s", error)

    def _ask(self, link: HostLink, other: HostLink | None) -> None:
        """Have a host dial this program, and another host.

        Raises:
            BackendUnavailableError: it cannot be asked.
        """
        places = [] if self._all_streamed else self._candidates(link)
        door = None if other is None or other.about is None else other.about.door
        asked = [*places, door] if door else places
        argv = [link.host.python, "-I", "-S", "-c", _TRY, json.dumps(asked)]
        answer = run(link.transport, argv, timeout=self._config.connect_timeout)
        try:
            said = [bool(one) for one in json.loads(answer.output)]
        except ValueError as error:
            words = answer.errors.strip()[-500:] or f"exit code {answer.code}"
            msg = f"host {link.host.name} does not tell what it can dial: {words}"
            raise BackendUnavailableError(msg) from error
        reached = [place for place, is_reached in zip(asked, said, strict=True) if is_reached]
        missed = ""
        if other is not None and door and (door not in reached or _is_only_mine(door, link)):
            missed = f"host {other.host.name}"
        program = next((place for place in places if place in reached), None)
        self._found[link.host.name] = _Found(program, missed)

    def _candidates(self, link: HostLink) -> list[Place]:
        """Where a host may reach this program."""
        if self._program is None:
            return []
        advertised, port = self._program
        if self._config.address is not None:
            return [(self._config.address, port)]
        seen = None if link.about is None else link.about.ours
        named = None if advertised in _ANYWHERE else advertised
        return [(host, port) for host in dict.fromkeys((seen, named)) if host]

    def _unreached(self, link: HostLink) -> str:
        """That a host does not dial this program.

        Raises:
            BackendUnavailableError: it has to.
        """
        tried = ", ".join(host for host, _ in self._candidates(link)) or "any address"
        words = f"host {link.host.name} does not reach this machine at {tried}"
        if self._config.reach == "direct":
            msg = (
                f"{words}; name the address with FIBER_SSH_ADDRESS, or set FIBER_SSH_REACH=reversed"
            )
            raise BackendUnavailableError(msg)
        return f"{words}, and "

    def _streamed(self, link: HostLink, before: str) -> Way:
        """Streams, where the host's sshd opens any.

        Raises:
            BackendUnavailableError: it does not.
        """
        name = link.host.name
        why = "" if name in self._open else refusal(link.transport, self._config.connect_timeout)
        if why:
            msg = (
                f"{before}sshd of host {name} opens no streams into jobs there ({why}); "
                "its configuration needs AllowTcpForwarding yes, or local"
            )
            raise BackendUnavailableError(msg)
        self._open.add(name)
        return Way(is_streamed=True, is_apart=self._apart)


def _place(urls: Sequence[str]) -> Place | None:
    """Host and port of the first address that can be dialled."""
    for url in urls:
        if not url.startswith("hub+"):
            parts = urlsplit(url)
            return parts.hostname or _LOOPBACK, parts.port or 0
    return None


def _is_only_mine(door: Place, link: HostLink) -> bool:
    """True where another host's address is loopback, which leads to ourselves."""
    mine = None if link.about is None else link.about.address
    return door[0] in (_LOOPBACK, "::1") and mine != door[0]
