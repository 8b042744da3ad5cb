"""How a process of a run is reached and reaches others: by dialling, or over the hub's streams.

Where a process listens for its children: what the hook answers.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fiber._tunnel import routes
from fiber.exceptions import TransportError
from fiber.model import Interface, JobState, ListenAddress, Peers, ReachKind

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext
    from fiber._tunnel.hub import Hub
    from fiber._wire.endpoint import Endpoint
    from fiber.model import Job, JobSpec, JobStatus, ListenAddress

__all__ = ["Router"]


def choose_address(runtime: LaunchContext) -> ListenAddress:
    """Ask ``fiber_listen_address``; interfaces are read only where others than this host dial."""
    same_host = runtime.info.capabilities.same_host
    ask = runtime.info.facts
    peers = Peers(
        same_host=same_host,
        directory=str(runtime.directory),
        name=runtime.ident,
        config=runtime.config.settings,
        environ=dict(os.environ),
        facts=None if ask is None else ask(runtime.config.settings, os.environ),
    )
    found: tuple[Interface, ...] = ()
    if not same_host:
        from fiber._wire.interfaces import interfaces

        found = interfaces()
    address: ListenAddress = runtime.plugins.hook.fiber_listen_address(
        backend=runtime.info.name, peers=peers, interfaces=found
    )
    return address


log = logging.getLogger("fiber")


class Router:
    """Of one process.

    Args:
        runtime: of this process.
    """

    def __init__(self, runtime: LaunchContext) -> None:
        told = runtime.instructions
        self._runtime = runtime
        self._lock = threading.Lock()
        # what is dialled in place of an address
        self._known: dict[str, str] = {} if told is None else dict(told.forwards)
        self._landing = told is not None and told.landing
        self._hub: Hub | None = None
        # jobs into which streams are opened: their idents, and what was heard of others
        self._idents: dict[str, str] = {}
        # in a job: where this process listens, and what tells the supervisor that it still does
        self._served: dict[str, socket.socket] = {}
        self._early: dict[str, JobStatus] = {}

    # -- addresses

    def open_endpoint(self) -> Endpoint:
        """Listen where the plugins say."""
        from fiber._wire.endpoint import Endpoint

        runtime = self._runtime
        address = choose_address(runtime)
        endpoint = Endpoint(
            runtime.credentials,
            runtime.hello,
            runtime.reactor,
            max_frame=runtime.config.max_frame,
        )
        bound = endpoint.listen(address)
        if address.routed and runtime.is_master:
            self._hub = self._new_hub()
        found = self.through_hub(bound, address)
        if found is not None:
            # best first: who has streams was given them because it cannot dial the program, and
            # jobs that can dial each other do
            dialled = [] if self._hub is not None and _is_inward(address) else endpoint.urls
            urls = [found, *dialled] if self._hub is not None else [*dialled, found]
            endpoint.urls[:] = urls
        return endpoint

    def through_hub(self, url: str, address: ListenAddress | None = None) -> str | None:
        """How what this process listens on is reached through the hub; None where it is not."""
        if self._hub is None and not self._landing:
            return None
        if address is not None:
            # what is advertised may be no address of this host
            host = address.bind_url.partition("://")[2].rpartition(":")[0]
            url = f"{url.partition('://')[0]}://{host}:{url.rpartition(':')[2]}"
        route = routes.route_to(url, self._runtime.ident)
        if route is not None:
            self._serve(route)
        return route

    def _serve(self, route: str) -> None:
        """Have connections for this process let in by streams, there and nowhere else."""
        if self._hub is not None:
            self._hub.serve(route)
            return
        from fiber._tunnel.landing import serve

        with self._lock:
            if route not in self._served:
                self._served[route] = serve(self._runtime.directory, route)

    def withdraw(self, url: str) -> None:
        """This process listens at one of its addresses no more."""
        route = routes.route_to(url, self._runtime.ident)
        if route is None:
            return
        if self._hub is not None:
            self._hub.withdraw(route)
        with self._lock:
            served = self._served.pop(route, None)
        if served is not None:
            served.close()

    def way(self, url: str) -> str:
        """What is dialled in place of a URL.

        Raises:
            TransportError: there is no way.
        """
        if not self._known and not routes.is_route(url):
            return url
        known = self._known.get(url)
        if known is None:
            if not routes.is_route(url):
                return url
            known = self._find(url)
            self._known[url] = known
        return known

    def best(self, urls: Iterable[str]) -> Sequence[str]:
        """An owner's addresses, best first as it says, in the order in which they are tried from here."""
        found = tuple(urls)
        if self._hub is None and not self._landing:
            return found
        return sorted(found, key=self._rank)

    def _rank(self, url: str) -> bool:
        # the hub is outside; in a job a port of its own host's loopback is nobody else's
        return not routes.is_route(url) and (self._hub is not None or "//127." in url)

    def _find(self, url: str) -> str:
        if self._hub is not None:
            return self._hub.way(url)
        if self._landing:
            from fiber._tunnel.landing import ask

            return ask(self._runtime.directory, url)
        msg = f"{url} is known to another program's hub; there is no way from here"
        raise TransportError(msg)

    # -- jobs

    def submitted(self, spec: JobSpec, job: Job) -> None:
        """A job was submitted here, for this process or for another one."""
        if self._hub is None or spec.ident is None:
            return
        backend = self._runtime.backend
        self._hub.add(spec.ident, spec.name, functools.partial(backend.open_stream, job))
        with self._lock:
            self._idents[job.id] = spec.ident
            early = self._early.pop(job.id, None)
        if early is not None:
            self.observed(job, early)

    def observed(self, job: Job, status: JobStatus) -> None:
        """A job changed."""
        if self._hub is None:
            return
        with self._lock:
            ident = self._idents.get(job.id)
            if ident is None:
                self._early[job.id] = status
                return
            if status.state.is_terminal:
                del self._idents[job.id]
        if status.state.is_terminal:
            self._hub.remove(ident)
        elif status.state is JobState.RUNNING and self._is_streamed(job):
            self._hub.begin(ident)

    def _is_streamed(self, job: Job) -> bool:
        return self._runtime.backend.reach(job).kind is ReachKind.REVERSED

    def close(self) -> None:
        """Carry nothing any more. Idempotent."""
        if self._hub is not None:
            self._hub.close()
        with self._lock:
            for served in self._served.values():
                served.close()
            self._served.clear()

    def _new_hub(self) -> Hub:
        from fiber._tunnel.hub import Hub

        runtime = self._runtime
        return Hub(
            runtime.credentials.key,
            runtime.ident,
            patience=runtime.lease,
            on_speed=self._tell_speed,
        )

    def _tell_speed(self, speed: tuple[float, float]) -> None:
        there_and_back, rate = speed
        log.warning(
            "fiber: jobs on %s cannot dial this program; their connections are carried over streams "
            "opened into them: %.1f ms there and back, %.1f MB/s in one stream; `fiber run -a` "
            "starts a program where its jobs can dial it",
            self._runtime.info.name,
            1000 * there_and_back,
            rate / 1e6,
        )


def _is_inward(address: ListenAddress) -> bool:
    """True where it is bound so that nobody elsewhere can dial it."""
    host = address.bind_url.partition("://")[2].rpartition(":")[0].strip("[]")
    return address.advertise_host is None and (
        host.startswith("127.") or host in ("::1", "localhost")
    )
