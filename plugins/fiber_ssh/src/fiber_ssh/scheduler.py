"""Where jobs and hosts meet: who goes where, who waits, who was lost; one lock guards it all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

import attrs

from fiber.abc import ResourceProvider
from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendUnavailableError, FiberError, ResourceError, SubmitError
from fiber.model import JobState, JobStatus, Reason, ReasonKind
from fiber_ssh.config import SshConfig
from fiber_ssh.hosts import Host
from fiber_ssh.link import HostLink, Request
from fiber_ssh.order import Order, agent_order
from fiber_ssh.output import Terminal, pass_output
from fiber_ssh.placement import Room, choose, waiting_for
from fiber_ssh.reaching import Reaching, Way
from fiber_ssh.remote.wire import Message
from fiber_ssh.station import Station
from fiber_ssh.stations import Stations
from fiber_ssh.status import job_of, lost, status_of
from fiber_ssh.warden import Warden

__all__ = ["Desk"]

log = logging.getLogger("fiber")

#: orders that are remembered after their end, for who asks for their logs
_REMEMBERED = 10_000
_SIGNALS = {"terminate": 15, "kill": 9}


class Desk:
    """All hosts, and the jobs of this program on them; thread-safe.

    Args:
        hosts: the hosts, in the user's order.
        config: the settings.
        backend: name of the backend.
        run_id: the run whose jobs these are; None to look only.
        lease: seconds of silence after which a host is given up.
        providers: installed resource providers by kind.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        config: SshConfig,
        *,
        backend: str,
        run_id: str | None,
        lease: float,
        providers: Mapping[str, ResourceProvider],
    ) -> None:
        self.feed = Feed()
        self.run_id = run_id
        self.lease = lease
        self._config = config
        self._backend = backend
        self._providers = providers
        self._changed = threading.Condition(threading.RLock())
        self._orders: dict[str, Order] = {}
        self._queue: dict[str, Order] = {}
        self._terminal = Terminal()
        self._warden = Warden(lease, self._silent, lambda name: self.stations[name].link.drop())
        self._has_begun = self._closed = False
        self._reaching = Reaching(config, lambda: [one.link for one in self.stations])
        self.stations = Stations(hosts, config, providers, self._station, self._changed, lease)

    def _station(self, host: Host) -> Station:
        link = HostLink(
            host,
            self._config,
            run_id=self.run_id,
            lease=self.lease,
            on_jobs=self._attached,
            on_job=self._job_changed,
            on_beat=lambda link: self._warden.heard(link.host.name),
            on_change=self._link_changed,
        )
        return Station(link, self._config, self._providers)

    # -- hosts

    @property
    def has_begun(self) -> bool:
        """True once hosts were connected to."""
        return self._has_begun

    @property
    def is_closed(self) -> bool:
        """True from :meth:`close` on."""
        return self._closed

    def begin(self) -> None:
        """Connect to all hosts; waits for nothing. Idempotent.

        Raises:
            BackendUnavailableError: it is closed.
        """
        with self._changed:
            if self._closed:
                msg = "the ssh backend is closed"
                raise BackendUnavailableError(msg)
            if self._has_begun:
                return
            self._has_begun = True
        if self.run_id is not None:
            self._warden.begin()
        for station in self.stations:
            station.link.begin()

    def up(self, *, every: bool = False) -> list[Station]:
        """Hosts that can be asked, once there is one, or once it is known of every host.

        Raises:
            BackendUnavailableError: there is none, with the reason for each.
        """
        self.begin()
        return self.stations.up(every=every)

    def rooms(self, stations: Sequence[Station]) -> list[Room]:
        """What hosts have and what is free."""
        with self._changed:
            return [station.room() for station in stations]

    # -- orders

    def order(self, job_id: str) -> Order | None:
        """A job that was submitted here."""
        with self._changed:
            return self._orders.get(job_id)

    def waiting(self) -> list[Order]:
        """Jobs that have no host yet."""
        with self._changed:
            return list(self._queue.values())

    def alive(self) -> list[Order]:
        """Jobs that have not ended."""
        with self._changed:
            return [one for one in self._orders.values() if not self._has_ended(one.job.id)]

    def wait_given(self, job_id: str) -> bool:
        """Wait until a job has a host; False where it ended first."""

        def is_decided() -> bool:
            order = self._orders.get(job_id)
            return order is None or order.host is not None or self._has_ended(job_id)

        with self._changed:
            self._changed.wait_for(is_decided)
            order = self._orders.get(job_id)
            return order is not None and order.host is not None

    def submit(self, order: Order) -> None:
        """Accept a job; give it to a host, or let it wait.

        Raises:
            BackendUnavailableError: no host can be asked.
            ResourceError: no host will ever have what it asks for.
            SubmitError: no host has the Python and the fiber that it needs.
        """
        request = order.spec.resources
        kinds = [kind for kind, count in request.devices.items() if count]
        stations = self.up(every=bool(kinds))
        self.stations.probe(kinds)
        usable = self._usable(stations, order)
        try:
            self._accept(order, usable)
        except ResourceError:
            # another host may have more
            usable = self._usable(self.up(every=True), order)
            self._accept(order, usable)

    def _usable(self, stations: Sequence[Station], order: Order) -> list[Station]:
        if order.spec.entry is None:
            return list(stations)
        usable = [station for station in stations if not station.unfit]
        if not usable:
            usable = [station for station in self.up(every=True) if not station.unfit]
        if not usable:
            msg = "; ".join(station.unfit for station in stations)
            raise SubmitError(msg)
        return usable

    def _accept(self, order: Order, stations: Sequence[Station]) -> None:
        request = order.spec.resources
        with self._changed:
            rooms = self.rooms(stations)
            name = choose(rooms, request)
            self._orders[order.job.id] = order
            message = "" if name else waiting_for(rooms, request)
            self.feed.publish(order.job, JobStatus(state=JobState.PENDING, message=message))
            if name is None:
                self._queue[order.job.id] = order
            else:
                self._give(order, self.stations[name])

    def _give(self, order: Order, station: Station) -> None:
        order.host = station.host.name
        order.devices = station.hold(order.job.id, order.spec.resources)
        self._changed.notify_all()
        station.soon(lambda: self._send(order, station))

    def _place(self) -> None:
        """Give hosts to jobs that wait, in their order as far as there is room."""
        with self._changed:
            if self._closed or not self._queue:
                return
            up = self.stations.connected()
            for job_id, order in list(self._queue.items()):
                fit = [s for s in up if order.spec.entry is None or not s.unfit]
                try:
                    name = choose(self.rooms(fit), order.spec.resources)
                except ResourceError:
                    # the host that has it cannot be asked now
                    continue
                if name is not None:
                    del self._queue[job_id]
                    self._give(order, self.stations[name])

    def _send(self, order: Order, station: Station) -> None:
        """Tell the host's agent of the job; on the host's own thread."""
        link, spec = station.link, order.spec
        if self._has_ended(order.job.id):
            return
        try:
            about = link.about
            if about is None or not link.is_up:
                raise link.unavailable()
            work = station.files(spec)
            way = Way() if spec.ident is None else self._reaching.way(link, spec.urls)
        except (FiberError, OSError) as error:
            if link.is_up:
                self._end(order, lost(ReasonKind.START, str(error), station.host.name))
            else:
                self._give_back(order, station)
            return
        told = agent_order(
            order,
            station.host,
            about,
            way=way,
            device_environ=station.environment(order.devices),
            work=work,
        )
        link.ask("submit", {"job": told}, lambda request: self._answered(order, request))
        if not spec.detached:
            pass_output(self._terminal, link, order)

    def _give_back(self, order: Order, station: Station) -> None:
        """The host cannot be asked any more, and has not heard of the job."""
        with self._changed:
            station.release(order.job.id)
            order.host, order.devices = None, ()
            self._queue[order.job.id] = order
        self._place()

    def _answered(self, order: Order, request: Request) -> None:
        if request.error is None:
            # the private part has done its duty
            order.confirmed, order.spec = True, attrs.evolve(order.spec, private=None)
            return
        kind = ReasonKind.START
        if isinstance(request.error, BackendUnavailableError):
            kind = ReasonKind.NODE_LOST
        self._end(order, lost(kind, str(request.error), order.host))

    # -- what hosts tell

    def _link_changed(self, link: HostLink) -> None:
        station = self.stations[link.host.name]
        if link.is_up:
            station.came_up()
        with self._changed:
            self._changed.notify_all()
        self._place()

    def _attached(self, link: HostLink, records: list[Message]) -> None:
        for record in records:
            self._job_changed(link, record)
        there = {record["id"] for record in records}
        with self._changed:
            missing = [
                order
                for order in self._orders.values()
                if order.host == link.host.name and order.confirmed and order.job.id not in there
            ]
        words = "its host knows it no more: its agent there ended, or gave this program up"
        for order in missing:
            self._end(order, lost(ReasonKind.NODE_LOST, words, link.host.name))

    def _job_changed(self, link: HostLink, record: Message) -> None:
        status = status_of(record, link.host.name)
        order = self.order(record["id"])
        if order is None:
            self.feed.publish(job_of(record, self._backend, link.host.name), status)
            return
        order.landing = record.get("landing")
        if not status.state.is_terminal and self._has_ended(order.job.id):
            # it was given up, and its host has come back
            link.post("kill", job=order.job.id)
        elif status.state.is_terminal:
            self._end(order, status)
        else:
            self.feed.publish(order.job, status)

    def _silent(self, name: str, seconds: float) -> None:
        """A host was silent for longer than its lease: what it ran has ended, by its own clock too."""
        station = self.stations[name]
        why = (
            f"host {name} was silent for {seconds:.1f} s, longer than its lease of {self.lease:g} s"
        )
        log.warning("%s", why)
        with self._changed:
            orders = [one for one in self._orders.values() if one.host == name]
        for order in orders:
            self._end(order, lost(ReasonKind.LEASE, why, name))
        station.link.give_up(why)

    def _has_ended(self, job_id: str) -> bool:
        status = self.feed.status(job_id)
        return status is None or status.state.is_terminal

    def _end(self, order: Order, status: JobStatus) -> None:
        with self._changed:
            self._queue.pop(order.job.id, None)
            if order.host is not None:
                self.stations[order.host].release(order.job.id)
            self.feed.publish(order.job, status)
            ended = [
                i for i in self._orders if len(self._orders) > _REMEMBERED and self._has_ended(i)
            ]
            for job_id in ended[: len(self._orders) - _REMEMBERED]:
                del self._orders[job_id]
            self._changed.notify_all()
        self._place()

    # -- what jobs are told

    def tell(self, order: Order, op: str, **fields: object) -> None:
        """End a job of ours.

        Raises:
            BackendUnavailableError: its host cannot be asked now; it is told when it can be.
        """
        with self._changed:
            if order.host is None:
                self._end_waiting(order, _SIGNALS[op])
                return
            station = self.stations[order.host]
        link = station.link

        def ask() -> None:
            link.ask(op, {"job": order.job.id, **fields})

        station.soon(ask)
        self.stations.wait_back(station)

    def cancel_waiting(self, run_id: str) -> None:
        """End the jobs of a run that have no host yet."""
        for order in self.waiting():
            if order.job.run_id == run_id:
                self._end_waiting(order, 9)

    def _end_waiting(self, order: Order, number: int) -> None:
        self._end(
            order,
            JobStatus(
                state=JobState.FAILED,
                reason=Reason(ReasonKind.SIGNAL, number),
                exit_code=-number,
                message="it was ended before it had a host",
            ),
        )

    # -- end

    def close(self) -> None:
        """End the jobs of the run that are not detached, and all connections. Idempotent."""
        from fiber_ssh.closing import close_stations

        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self.run_id is not None:
            self.cancel_waiting(self.run_id)
        self._warden.close()
        close_stations(list(self.stations), self.run_id)
        self._terminal.close()
        self.feed.close()
