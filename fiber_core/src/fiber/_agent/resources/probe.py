"""Probes of resource providers: the command that lists the devices of this host, and its answer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from fiber.abc import ResourceProvider
from fiber.exceptions import ResourceError
from fiber.model.job import Device

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
