"""Router of a process: the addresses by which it is reached, and those that it dials for others.

Most processes dial each other. Where jobs cannot dial the program, their connections go through the
tunnel (:mod:`fiber._tunnel`): the master runs its client, and each job's supervisor a server. A
URL for the tunnel is a *route*. Where a process listens is decided by the hook
``fiber_listen_address``.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fiber._base.log import lazy_logger
from fiber._tunnel import is_route
from fiber.exceptions import TransportError
from fiber.model import Interface, JobState, ListenAddress, Peers, ReachKind

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext
    from fiber._tunnel.client import TunnelClient
    from fiber._wire.endpoint import Endpoint
    from fiber.model import Job, JobSpec, JobStatus

__all__ = ["Router"]


def choose_address(runtime: LaunchContext) -> ListenAddress:
    """Answer of ``fiber_listen_address``; interfaces are read only where other hosts dial."""
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
        from fiber.backend_parts.address import interfaces

        found = interfaces()
    address: ListenAddress = runtime.plugins.hook.fiber_listen_address(
        backend=runtime.info.name, peers=peers, interfaces=found
    )
    return address


log = lazy_logger()


class Router:
    """Router of one process; thread-safe.

    Args:
        runtime: runtime of this process.
    """

    def __init__(self, runtime: LaunchContext) -> None:
        instructions = runtime.instructions
        self._runtime = runtime
        self._lock = threading.Lock()
        # addresses to dial in place of others
        self._resolved: dict[str, str] = {} if instructions is None else dict(instructions.forwards)
        self._tunnelled = instructions is not None and instructions.tunnelled
        self._client: TunnelClient | None = None
        # jobs into which streams are opened, by id, and statuses of jobs not yet submitted
        self._idents: dict[str, str] = {}
        # in a job: routes to this process, with the socket that keeps each alive at the supervisor
        self._served: dict[str, socket.socket] = {}
        self._early: dict[str, JobStatus] = {}

    # -- addresses

    def open_endpoint(self) -> Endpoint:
        """Open this process's endpoint, at the address that the plugins choose."""
        from fiber._wire.endpoint import Endpoint

        runtime = self._runtime
        address = choose_address(runtime)
        endpoint = Endpoint(
            runtime.credentials,
            runtime.hello,
            runtime.reactor,
            max_frame=runtime.config.max_frame,
            timing=runtime.timing,
        )
        bound = endpoint.listen(address)
        if address.routed and runtime.is_master:
            self._client = self._new_client()
        found = self.tunnel_route(bound, address)
        if found is not None:
            # best first: jobs with streams have them because they cannot dial the program, while jobs
            # that can dial each other do so
            dialled = [] if self._client is not None and _is_loopback(address) else endpoint.urls
            urls = [found, *dialled] if self._client is not None else [*dialled, found]
            endpoint.urls[:] = urls
        return endpoint

    def tunnel_route(self, url: str, address: ListenAddress | None = None) -> str | None:
        """Route to an address of this process through the tunnel; None where there is no tunnel."""
        if self._client is None and not self._tunnelled:
            return None
        if address is not None:
            # what is advertised may be no address of this host
            host = address.bind_url.partition("://")[2].rpartition(":")[0]
            url = f"{url.partition('://')[0]}://{host}:{url.rpartition(':')[2]}"
        from fiber._tunnel.routes import route_to

        route = route_to(url, self._runtime.ident)
        if route is not None:
            self._serve(route)
        return route

    def _serve(self, route: str) -> None:
        """Register a route, so that the tunnel accepts connections to it."""
        if self._client is not None:
            self._client.register(route)
            return
        from fiber._tunnel.server import register

        with self._lock:
            if route not in self._served:
                self._served[route] = register(
                    self._runtime.directory, route, timeout=self._runtime.timing.stream_answer
                )

    def withdraw(self, url: str) -> None:
        """Remove the route to an address at which this process no longer listens."""
        if self._client is None and not self._tunnelled:
            return
        from fiber._tunnel.routes import route_to

        route = route_to(url, self._runtime.ident)
        if route is None:
            return
        if self._client is not None:
            self._client.withdraw(route)
        with self._lock:
            served = self._served.pop(route, None)
        if served is not None:
            served.close()

    def resolve(self, url: str) -> str:
        """Address to dial in place of a URL.

        Raises:
            TransportError: the route cannot be reached from this process.
        """
        if not self._resolved and not is_route(url):
            return url
        known = self._resolved.get(url)
        if known is None:
            if not is_route(url):
                return url
            known = self._find(url)
            self._resolved[url] = known
        return known

    def rank(self, urls: Iterable[str]) -> Sequence[str]:
        """Addresses of an owner in the order in which this process is to try them."""
        found = tuple(urls)
        if self._client is None and not self._tunnelled:
            return found
        return sorted(found, key=self._rank)

    def _rank(self, url: str) -> bool:
        # the client's process is outside the jobs; in a job, loopback is that job's own host
        return not is_route(url) and (self._client is not None or "//127." in url)

    def _find(self, url: str) -> str:
        if self._client is not None:
            return self._client.resolve(url)
        if self._tunnelled:
            from fiber._tunnel.server import resolve

            timeout = self._runtime.timing.stream_answer
            return resolve(self._runtime.directory, url, timeout=timeout)
        msg = f"{url} is known to another program's tunnel; it cannot be reached from here"
        raise TransportError(msg)

    # -- jobs

    def submitted(self, spec: JobSpec, job: Job) -> None:
        """Note a job that this process has submitted, for itself or for a child."""
        if self._client is None or spec.ident is None:
            return
        backend = self._runtime.backend
        self._client.add(spec.ident, spec.name, functools.partial(backend.open_stream, job))
        with self._lock:
            self._idents[job.id] = spec.ident
            early = self._early.pop(job.id, None)
        if early is not None:
            self.observed(job, early)

    def observed(self, job: Job, status: JobStatus) -> None:
        """Note a job's status: streams are opened when it runs, and closed when it ends."""
        if self._client is None:
            return
        with self._lock:
            ident = self._idents.get(job.id)
            if ident is None:
                self._early[job.id] = status
                return
            if status.state.is_terminal:
                del self._idents[job.id]
        if status.state.is_terminal:
            self._client.remove(ident)
        elif status.state is JobState.RUNNING and self._is_streamed(job):
            self._client.begin(ident)

    def _is_streamed(self, job: Job) -> bool:
        return self._runtime.backend.reach(job).kind is ReachKind.REVERSED

    def close(self) -> None:
        """End the tunnel and remove all routes. Idempotent."""
        if self._client is not None:
            self._client.close()
        with self._lock:
            for served in self._served.values():
                served.close()
            self._served.clear()

    def _new_client(self) -> TunnelClient:
        from fiber._tunnel.client import TunnelClient

        runtime = self._runtime
        return TunnelClient(
            runtime.credentials,
            runtime.hello,
            patience=runtime.lease,
            on_speed=self._log_speed,
            timing=runtime.timing,
        )

    def _log_speed(self, speed: tuple[float, float]) -> None:
        round_trip, rate = speed
        log.warning(
            "fiber: jobs on %s cannot dial this program; their connections are carried over streams "
            "opened into them: a byte takes %.1f ms there and back, a message between processes several "
            "times that, and one stream carries %.1f MB/s; `fiber run -a` starts a program where its "
            "jobs can dial it",
            self._runtime.info.name,
            1000 * round_trip,
            rate / 1e6,
        )


def _is_loopback(address: ListenAddress) -> bool:
    """True for an address that only this host can dial."""
    host = address.bind_url.partition("://")[2].rpartition(":")[0].strip("[]")
    return address.advertise_host is None and (
        host.startswith("127.") or host in ("::1", "localhost")
    )
