"""Answers what is asked on a supervisor's channels."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import TypeVar

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.channel import Channel
from fiber._agent.supervisor.devices import DeviceQueue
from fiber._agent.supervisor.environment import environment
from fiber._agent.supervisor.jobs import JobEntry, JobTable
from fiber._agent.supervisor.preload import preload
from fiber._agent.supervisor.runner import JobRunner
from fiber._agent.supervisor.running_jobs import Launch
from fiber._base import values
from fiber.exceptions import ResourceError, WireError
from fiber.model import Allocation

__all__ = ["Desk"]

_R = TypeVar("_R", bound="messages.Request")


class Desk:
    """Carries out requests; each gets one reply on the channel it came by.

    A channel's requests reach the jobs that were submitted on it and no others.

    Args:
        table: where jobs stand.
        runner: starts and ends them.
        known_ids: ids that the run has used already.
        on_submit: called before each start.
        settle_interrupts: calls back once the runner was told of every SIGINT to the program's
            process group that was sent before.
        on_shutdown: called with the reply to give once everything has ended.
    """

    def __init__(
        self,
        table: JobTable,
        runner: JobRunner,
        *,
        known_ids: set[str],
        on_submit: Callable[[], None],
        settle_interrupts: Callable[[Callable[[], None]], None],
        on_shutdown: Callable[[Callable[[], None]], None],
    ) -> None:
        self._table = table
        self._runner = runner
        self._ids = known_ids
        self._on_submit = on_submit
        self._settle_interrupts = settle_interrupts
        self._on_shutdown = on_shutdown
        self._devices = DeviceQueue()
        self._waiting: dict[str, Launch] = {}
        self._ending: list[tuple[Channel, int]] = []
        self._closed = ""
        self._handlers: Mapping[type, Callable[[Channel, object], None]] = {
            messages.Submit: _typed(messages.Submit, self._submit),
            messages.Signal: _typed(messages.Signal, self._signal),
            messages.Interrupt: _typed(messages.Interrupt, self._interrupt),
            messages.Terminate: _typed(messages.Terminate, self._terminate),
            messages.Kill: _typed(messages.Kill, self._kill),
            messages.Query: _typed(messages.Query, self._query),
            messages.Preload: _typed(messages.Preload, self._preload),
            messages.Devices: _typed(messages.Devices, self._offer),
            messages.EndAll: _typed(messages.EndAll, self._end_all),
            messages.Shutdown: _typed(messages.Shutdown, self._shutdown),
        }

    def handle(self, channel: Channel, message: object) -> None:
        """Carry out one message.

        Raises:
            WireError: nobody but a supervisor says that.
        """
        if isinstance(message, messages.Ping):
            channel.send(messages.Pong())
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            msg = f"a supervisor does not know what {type(message).__name__} is"
            raise WireError(msg)
        handler(channel, message)

    def close(self, words: str) -> None:
        """Refuse all further jobs."""
        self._closed = words

    def job_ended(self, job_id: str) -> None:
        """A job is no more: start those that can have its devices, answer those who waited."""
        self._waiting.pop(job_id, None)
        for allocation in self._devices.release(job_id):
            if self._closed:
                continue
            launch = self._waiting.pop(allocation.job_id)
            self._runner.start(values.evolve(launch, grants=self._devices.grants(allocation)))
        self._answer_endings()

    def _answer_endings(self) -> None:
        for channel, number in tuple(self._ending):
            if not self._table.owned_by(channel.owner):
                self._ending.remove((channel, number))
                channel.send(messages.Done(number=number))

    def _submit(self, channel: Channel, message: messages.Submit) -> None:
        if self._closed:
            self._refuse(channel, message, messages.Why.SUBMIT, self._closed)
            return
        spec = message.spec
        counts = {kind: n for kind, n in spec.resources.devices.items() if n}
        unknown = self._devices.unknown(counts)
        if unknown:
            self._refuse(channel, message, messages.Why.DEVICES, " ".join(unknown))
            return
        job_id = self._new_id()
        self._on_submit()

        def answer(words: str, warnings: tuple[str, ...]) -> None:
            entry = self._table.get(job_id)
            if words or entry is None:
                self._refuse(channel, message, messages.Why.SUBMIT, words)
                return
            pids = tuple(p.pid for p in entry.processes if p.pid is not None)
            channel.send(
                messages.Accepted(
                    number=message.number, job_id=job_id, pids=pids, warnings=warnings
                )
            )

        launch = Launch(
            job_id=job_id,
            spec=spec,
            environ=environment(message.environ, spec),
            cwd=spec.cwd or message.cwd,
            owner=channel.owner,
            answer=answer,
        )
        allocation: Allocation | None = None
        if counts:
            try:
                allocation = self._devices.ask(job_id, counts)
            except ResourceError as error:
                # nobody has heard of that id
                words = str(error).replace(repr(job_id), repr(spec.name))
                self._refuse(channel, message, messages.Why.SUBMIT, words)
                return
        if counts and allocation is None:
            self._hold(channel, message, launch)
            return
        if allocation is not None:
            launch = values.evolve(launch, grants=self._devices.grants(allocation))
        self._table.add(job_id, owner=channel.owner, processes=spec.processes)
        self._runner.start(launch)

    def _hold(self, channel: Channel, message: messages.Submit, launch: Launch) -> None:
        self._waiting[launch.job_id] = values.evolve(launch, accepted=True)
        self._table.add(
            launch.job_id,
            owner=channel.owner,
            processes=launch.spec.processes,
            waiting=self._devices.reason(launch.job_id),
        )
        channel.send(messages.Accepted(number=message.number, job_id=launch.job_id))
        self._runner.hold(launch)

    def _signal(self, channel: Channel, message: messages.Signal) -> None:
        entry = self._entry(channel, message.job_id)
        if entry is not None:
            self._runner.signal(entry, message.process, message.signum, group=message.group)
        channel.send(messages.Done(number=message.number))

    def _interrupt(self, channel: Channel, message: messages.Interrupt) -> None:
        def act() -> None:
            entry = self._entry(channel, message.job_id)
            sent = entry is not None and signal.SIGINT not in entry.asked
            if entry is not None and sent:
                self._runner.interrupt(entry)
            channel.send(messages.Done(number=message.number, sent=sent))

        self._settle_interrupts(act)

    def _terminate(self, channel: Channel, message: messages.Terminate) -> None:
        entry = self._entry(channel, message.job_id)
        if entry is not None:
            self._runner.terminate(entry, message.grace)
        channel.send(messages.Done(number=message.number))

    def _kill(self, channel: Channel, message: messages.Kill) -> None:
        entry = self._entry(channel, message.job_id)
        if entry is not None:
            self._runner.kill(entry)
        channel.send(messages.Done(number=message.number))

    def _query(self, channel: Channel, message: messages.Query) -> None:
        statuses = {
            job.id: self._table.status(job.id)
            for job in self._table.owned_by(channel.owner)
            if not job.refused and (message.job_ids is None or job.id in message.job_ids)
        }
        channel.send(messages.Done(number=message.number, statuses=statuses))

    def _preload(self, channel: Channel, message: messages.Preload) -> None:
        channel.send(messages.Done(number=message.number, words=preload(message.modules)))

    def _offer(self, channel: Channel, message: messages.Devices) -> None:
        try:
            self._devices.offer(message.devices, message.providers)
        except ResourceError as error:
            self._refuse(channel, message, messages.Why.SUBMIT, str(error))
            return
        channel.send(messages.Done(number=message.number))

    def _end_all(self, channel: Channel, message: messages.EndAll) -> None:
        self._ending.append((channel, message.number))
        for job in self._table.owned_by(channel.owner):
            self._runner.kill(job)
        self._answer_endings()

    def _shutdown(self, channel: Channel, message: messages.Shutdown) -> None:
        if channel.owner is not None:
            words = f"only the master of a run ends its supervisor, not {channel.owner[0]}"
            self._refuse(channel, message, messages.Why.SUBMIT, words)
            return
        self._on_shutdown(lambda: channel.send(messages.Done(number=message.number)))

    def _entry(self, channel: Channel, job_id: str) -> JobEntry | None:
        entry = self._table.get(job_id)
        return entry if entry is not None and entry.owner == channel.owner else None

    def _refuse(
        self, channel: Channel, request: messages.Request, why: messages.Why, words: str
    ) -> None:
        channel.send(messages.Refused(number=request.number, why=why, words=words))

    def _new_id(self) -> str:
        while True:
            job_id = os.urandom(4).hex()
            if job_id not in self._ids:
                self._ids.add(job_id)
                return job_id


def _typed(
    kind: type[_R], handler: Callable[[Channel, _R], None]
) -> Callable[[Channel, object], None]:
    def call(channel: Channel, message: object) -> None:
        assert isinstance(message, kind)
        handler(channel, message)

    return call
