"""Devices of one host: found by probes, granted to jobs, shown to their processes.

A *provider* (:class:`fiber.abc.ResourceProvider`) names a kind of device, has a program that lists
those of a host, and knows the environment by which processes see theirs. :func:`probe` runs that
program, :class:`Allocator` grants whole devices to one job at a time and is pure, and ``nvidia`` is the
built-in provider of kind ``gpu``, which ``_plugins`` offers through the hook that third parties use.

Invariants: a device is granted to one job at a time; a grant is all or nothing; the answer follows
from the order of calls alone. There are no threads and no locks: the caller serialises its calls.
The supervisor's ``devices`` adds lock files, by which several runs on a host keep one account.
Callers are the supervisor's ``devices``, the local, docker and ssh plugins, and the fake platform
of :mod:`fiber.testing`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fiber.exceptions import ResourceError
from fiber.model.job import Allocation, Device

if TYPE_CHECKING:
    from fiber.abc import ResourceProvider


class Allocator:
    """Grants each device to one job at a time.

    A state machine without I/O, locks or waiting: the caller serialises the calls, and repeats
    those that returned None after a :meth:`release`. Which devices a job gets follows from the
    order of calls alone.

    Args:
        devices: all devices of the host, of any kinds.

    Raises:
        ResourceError: two devices of one kind have the same id.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._granted: dict[str, Allocation] = {}
        self.add(devices)

    def add(self, devices: Iterable[Device]) -> None:
        """Add devices of the host; grants stay as they are.

        Raises:
            ResourceError: two devices of one kind have the same id.
        """
        known = [*(d for of_kind in self._devices.values() for d in of_kind), *devices]
        known.sort(key=lambda device: (device.kind, device.index, device.id))
        found: dict[str, tuple[Device, ...]] = {}
        seen: set[tuple[str, str]] = set()
        for device in known:
            if (device.kind, device.id) in seen:
                msg = f"device {device.id!r} of kind {device.kind!r} is listed twice on this host"
                raise ResourceError(msg)
            seen.add((device.kind, device.id))
            found[device.kind] = (*found.get(device.kind, ()), device)
        self._devices = found

    def allocate(
        self, job_id: str, counts: Mapping[str, int], *, without: Container[Device] = ()
    ) -> Allocation | None:
        """Grant a job all the devices it asks for, or none.

        Args:
            job_id: the job that gets them, until :meth:`release`.
            counts: how many by kind.
            without: devices that it cannot get now.

        Returns:
            The allocation, or None while too many are granted to other jobs.

        Raises:
            ResourceError: this host will never have that many; the text has the number.
            ValueError: the job holds an allocation already, or a count is negative.
        """
        if job_id in self._granted:
            msg = f"job {job_id!r} already holds devices; release them first"
            raise ValueError(msg)
        for kind, count in sorted(counts.items()):
            if count < 0:
                msg = f"job {job_id!r} asks for {count} devices of kind {kind!r}"
                raise ValueError(msg)
            total = len(self._devices.get(kind, ()))
            if count > total:
                msg = (
                    f"job {job_id!r} asks for {count} of {kind!r} and this host has {total}; "
                    f"ask for fewer or run it where there are more"
                )
                raise ResourceError(msg)
        taken = self._taken()
        granted: list[Device] = []
        for kind, count in sorted(counts.items()):
            of_kind = (d for d in self._devices.get(kind, ()) if d not in without)
            free = [d for d in of_kind if (kind, d.id) not in taken]
            if count > len(free):
                return None
            granted.extend(free[:count])
        allocation = Allocation(job_id=job_id, devices=tuple(granted))
        self._granted[job_id] = allocation
        return allocation

    def release(self, job_id: str) -> tuple[Device, ...]:
        """Free the devices of a job, and return them; a job that holds none is no error."""
        granted = self._granted.pop(job_id, None)
        return () if granted is None else granted.devices

    def holders(self, kinds: Iterable[str]) -> list[str]:
        """The jobs that hold devices of some kinds, those that got them first first."""
        wanted = set(kinds)
        return [
            job_id
            for job_id, held in self._granted.items()
            if any(device.kind in wanted for device in held.devices)
        ]

    def free(self) -> Mapping[str, int]:
        """Number of free devices by kind; kinds without a free one are listed with 0."""
        taken = self._taken()
        return {
            kind: sum((kind, device.id) not in taken for device in devices)
            for kind, devices in self._devices.items()
        }

    def _taken(self) -> set[tuple[str, str]]:
        return {(d.kind, d.id) for held in self._granted.values() for d in held.devices}


_QUOTED = 500


def provider_of(kind: str, providers: Mapping[str, ResourceProvider]) -> ResourceProvider:
    """The provider of a kind of devices.

    Raises:
        ResourceError: it is not installed.
    """
    provider = providers.get(kind)
    if provider is None:
        installed = ", ".join(sorted(providers)) or "none"
        msg = f"no provider of {kind!r} devices is installed; installed are: {installed}"
        raise ResourceError(msg)
    return provider


def probe_argv(provider: ResourceProvider, python: str | None = None) -> tuple[str, ...]:
    """The provider's probe with ``{python}`` replaced.

    Args:
        provider: the provider.
        python: a Python that has fiber, on the host where the probe will run; this one if omitted.
    """
    chosen = python or sys.executable
    return tuple(word.replace("{python}", chosen) for word in provider.probe())


def probe(
    provider: ResourceProvider,
    *,
    timeout: float = 20.0,
    environ: Mapping[str, str] | None = None,
) -> tuple[Device, ...]:
    """Run a provider's probe on this host and read its answer.

    Args:
        provider: which kind of devices to look for.
        timeout: seconds until the probe is killed; drivers that were asleep answer late.
        environ: environment of the probe, this process's if omitted.

    Returns:
        The devices in the order of their index; empty where there are none.

    Raises:
        ResourceError: the probe could not be run, failed, took too long or answered nonsense; the
            text has the command and its words.
    """
    argv = probe_argv(provider)
    import shlex

    probe_text = f"the probe for {provider.kind!r} devices, {shlex.join(argv)!r},"
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        msg = f"{probe_text} could not be started: {error}"
        raise ResourceError(msg) from error
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            _kill_group(process)
            msg = f"{probe_text} gave no answer within {timeout:g} s; run it by hand to see why"
            raise ResourceError(msg) from error
        except BaseException:
            _kill_group(process)
            raise
    return read_answer(provider, probe_text, process.returncode, output, errors)


def read_answer(
    provider: ResourceProvider, subject: str, code: int, output: str, errors: str = ""
) -> tuple[Device, ...]:
    """The devices that a probe has listed; ``subject`` says which probe that was, and where it ran.

    Raises:
        ResourceError: it failed or answered nonsense; the text has its words.
    """
    if code != 0:
        words = errors.strip()[-_QUOTED:] or output.strip()[-_QUOTED:] or "it said nothing"
        msg = f"{subject} failed with exit code {code}: {words}"
        raise ResourceError(msg)
    try:
        devices = provider.parse(output)
    except Exception as error:
        msg = f"{subject} gave an answer that cannot be read: {error}"
        raise ResourceError(msg) from error
    return check_devices(provider, devices)


def check_devices(provider: ResourceProvider, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices in the order of their index, once they agree with their provider.

    Raises:
        ResourceError: a device is of another kind, or two have the same id.
    """
    seen: set[str] = set()
    for device in devices:
        if device.kind != provider.kind:
            msg = (
                f"the provider of {provider.kind!r} devices answered with a device of kind "
                f"{device.kind!r} ({device.id})"
            )
            raise ResourceError(msg)
        if device.id in seen:
            msg = f"the provider of {provider.kind!r} devices names {device.id!r} twice"
            raise ResourceError(msg)
        seen.add(device.id)
    return tuple(sorted(devices, key=lambda device: (device.index, device.id)))


def _kill_group(process: subprocess.Popen[str]) -> None:
    # the whole session: a grandchild that keeps the pipe open would keep communicate() waiting
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
