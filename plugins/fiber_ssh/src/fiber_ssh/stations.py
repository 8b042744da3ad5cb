"""All hosts of a program: connected to together, waited for, and probed for devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError, BackendUnavailableError, ResourceError
from fiber_ssh.config import SshConfig
from fiber_ssh.hosts import Host
from fiber_ssh.station import Station

__all__ = ["Stations"]

log = logging.getLogger("fiber")

#: seconds for a connection that dropped to be made again, before its host is said not to answer
_RECONNECT = 10.0
#: seconds that the first job waits for other hosts, once one has answered
_TOGETHER = 2.0


class Stations:
    """The hosts by name, in the user's order.

    Args:
        hosts: the hosts.
        config: the settings.
        providers: installed resource providers by kind.
        make: makes a station of a host.
        changed: its lock guards them; notified when a host came up or failed.
        lease: seconds of silence after which a host is given up.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        config: SshConfig,
        providers: Mapping[str, ResourceProvider],
        make: Callable[[Host], Station],
        changed: threading.Condition,
        lease: float,
    ) -> None:
        self._config = config
        self._providers = providers
        self._changed = changed
        self._together = False
        self._patience = min(_RECONNECT, lease)
        self._stations = {host.name: make(host) for host in hosts}

    def __getitem__(self, name: str) -> Station:
        return self._stations[name]

    def __contains__(self, name: object) -> bool:
        return name in self._stations

    def __iter__(self) -> Iterator[Station]:
        return iter(self._stations.values())

    def __str__(self) -> str:
        return ", ".join(self._stations)

    def connected(self) -> list[Station]:
        """Those that can be asked now."""
        return [station for station in self if station.link.is_up]

    def up(self, *, every: bool) -> list[Station]:
        """Those that can be asked, once there is one, or once it is known of every host.

        Raises:
            BackendUnavailableError: there is none, with the reason for each.
        """

        def are_known() -> bool:
            known = [station.link.is_known for station in self]
            return all(known) or (not every and bool(self.connected()))

        with self._changed:
            self._changed.wait_for(are_known, self._config.connect_timeout * 4)
            if not self._together:
                # else all jobs of a small pool would go to the host that answered first
                self._together = True
                self._changed.wait_for(lambda: all(s.link.is_known for s in self), _TOGETHER)
            self._changed.wait_for(lambda: _are_back(self, every=every), self._patience)
            found = self.connected()
        if not found:
            why = "; ".join(f"{s.host.name}: {s.link.failure or 'no answer'}" for s in self)
            msg = f"no ssh host can be asked ({why})"
            raise BackendUnavailableError(msg)
        return found

    def wait_back(self, station: Station) -> None:
        """Wait a moment for a host whose connection dropped.

        Raises:
            BackendUnavailableError: it cannot be asked.
        """
        with self._changed:
            self._changed.wait_for(lambda: _are_back([station], every=True), self._patience)
        if not station.link.is_up:
            raise station.link.unavailable()

    def probe(self, kinds: Sequence[str]) -> None:
        """Look for devices on hosts where nobody looked yet, on all hosts at once.

        Raises:
            BackendUnavailableError: no host can be asked.
            ResourceError: nobody knows such devices, or no host can be probed.
        """
        for kind in kinds:
            if kind not in self._providers:
                installed = ", ".join(sorted(self._providers)) or "none"
                msg = f"no provider of {kind!r} devices is installed; installed are: {installed}"
                raise ResourceError(msg)
        if not kinds:
            return
        failures: list[Exception] = []
        asked = [(s, k) for k in kinds for s in self.up(every=True) if not s.knows(k)]

        def look(station: Station, kind: str) -> None:
            try:
                found = station.probe(kind)
            except (BackendError, ResourceError) as error:
                failures.append(error)
                log.warning("%s", error)
                return
            with self._changed:
                station.learn(kind, found)

        threads = [threading.Thread(target=look, args=pair, daemon=True) for pair in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if asked and len(failures) == len(asked):
            raise failures[0]


def _are_back(stations: Stations | Sequence[Station], *, every: bool) -> bool:
    """True where no connection that dropped just now is worth waiting for."""
    links = [station.link for station in stations]
    if not every and any(link.is_up for link in links):
        return True
    return all(link.is_up or not link.was_up for link in links)
