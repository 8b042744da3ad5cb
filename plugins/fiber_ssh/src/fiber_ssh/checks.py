"""What ``fiber doctor`` finds out about the hosts."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from fiber._wire.interfaces import interfaces
from fiber.exceptions import BackendError, FiberError, ResourceError
from fiber.model import BackendContext, Check, Job, JobSpec, JobState, Peers
from fiber_ssh.address import NOWHERE, listen_address
from fiber_ssh.config import SshConfig
from fiber_ssh.desk import Desk
from fiber_ssh.hosts import read_hosts
from fiber_ssh.link import HostLink
from fiber_ssh.order import Order
from fiber_ssh.reaching import Reaching
from fiber_ssh.station import Station

__all__ = ["run_checks"]

_PATIENCE = 30.0
_CODE = "import socket; print(socket.gethostname())"


def run_checks(context: BackendContext) -> Iterator[Check]:
    """Check every host, one after the other, with a job on each, then how their jobs would meet.

    Args:
        context: as the backend has it; the checks are runs of their own.
    """
    config = context.config if isinstance(context.config, SshConfig) else SshConfig()
    try:
        hosts = read_hosts(config)
    except FiberError as error:
        yield Check(name="hosts", ok=False, detail=str(error), fix=_fix(str(error)))
        return
    with contextlib.ExitStack() as stack:
        links = []
        for host in hosts:
            desk = Desk(
                (host,),
                config,
                backend="ssh",
                run_id=secrets.token_hex(4),
                lease=_PATIENCE,
                providers=context.providers,
            )
            stack.callback(desk.close)
            station = desk.stations[host.name]
            yield from _check_host(desk, station, sorted(context.providers))
            if station.link.is_up:
                links.append(station.link)
        yield from _check_connections(links, config)


def _check_host(desk: Desk, station: Station, kinds: list[str]) -> Iterator[Check]:
    name = f"host {station.host.name}"
    try:
        desk.up()
    except BackendError as error:
        why = station.link.failure or str(error)
        fix = _fix(why, f"run ssh {station.host.name} true, and mend what it says")
        yield Check(name=name, ok=False, detail=why, fix=fix)
        return
    about = station.link.about
    assert about is not None
    python = f"Python {'.'.join(map(str, about.python))} at {about.executable}"
    room = f"{station.room().slots:g} slots, {about.cpus} CPUs, {about.memory} MB of memory"
    yield Check(name=name, ok=True, detail=f"{room}, {python}")
    if station.unfit:
        yield Check(name=f"{name}: fiber", ok=False, detail=station.unfit, fix=_fix(station.unfit))
    else:
        yield Check(name=f"{name}: fiber", ok=True, detail=f"fiber-core {about.fiber}")
    for kind in kinds:
        try:
            found = station.probe(kind)
        except (BackendError, ResourceError) as error:
            fix = f"mend it, or do without {kind!r} there"
            yield Check(name=f"{name}: {kind}", ok=False, detail=str(error), fix=fix)
        else:
            yield Check(name=f"{name}: {kind}", ok=True, detail=f"{len(found)} found")
    yield _check_job(desk, about.executable, name)


def _check_connections(links: Sequence[HostLink], config: SshConfig) -> Iterator[Check]:
    """Find out how jobs on these hosts would meet, as for the processes of a pool."""
    if not links:
        return
    reaching = Reaching(config, lambda: links)
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(_listening(config))
        except OSError as error:
            detail = f"this program cannot listen for its processes: {error}"
            yield Check(name="connections", ok=False, detail=detail, fix="set FIBER_SSH_ADDRESS")
            return
        for link in links:
            name = f"host {link.host.name}: connections"
            try:
                way = reaching.way(link, [url])
            except FiberError as error:
                yield Check(name=name, ok=False, detail=str(error), fix=_fix(str(error)))
                continue
            detail = "its processes dial this program"
            if way.is_streamed:
                detail = "over streams of its ssh connection, for not all hosts can be dialled"
            yield Check(name=name, ok=True, detail=detail)


@contextlib.contextmanager
def _listening(config: SshConfig) -> Iterator[str]:
    """In this block this process can be dialled as one that has a pool; the URL."""
    peers = Peers(same_host=False, directory="", name="doctor", config=config, environ=os.environ)
    chosen = listen_address(peers, interfaces())
    host = urlsplit(chosen.bind_url).hostname or NOWHERE
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # whoever dials is connected by the system; there is nothing to say
    with socket.create_server((host, 0), family=family) as listener:
        listener.setblocking(True)
        told = chosen.advertise_host or host
        told = f"[{told}]" if ":" in told else told
        yield f"tls+tcp://{told}:{listener.getsockname()[1]}"


def _check_job(desk: Desk, python: str, name: str) -> Check:
    run_id = str(desk.run_id)
    begin = time.monotonic()
    argv = (python, "-I", "-S", "-c", _CODE)
    spec = JobSpec(run_id=run_id, name="doctor", argv=argv, detached=True)
    job = Job(id=f"{run_id}-doctor", name="doctor", run_id=run_id, backend="ssh", argv=argv)
    try:
        desk.submit(Order(job, spec))
        for _, status in desk.feed.events(run_id):
            if status.state.is_terminal:
                ok = status.state is JobState.SUCCEEDED
                took = f"it ran and ended in {time.monotonic() - begin:.2f} s"
                detail = took if ok else f"it ended by {status.reason}: {status.message}"
                fix = "" if ok else _fix(status.message, f"run {python} on the {name} by hand")
                return Check(name=f"{name}: a job", ok=ok, detail=detail, fix=fix)
    except FiberError as error:
        return Check(name=f"{name}: a job", ok=False, detail=str(error), fix=_fix(str(error)))
    return Check(name=f"{name}: a job", ok=False, detail="nothing was heard of it", fix="try again")


def _fix(why: str, otherwise: str = "mend that and try again") -> str:
    """Errors end with what to do, after a semicolon."""
    _, semicolon, fix = why.rpartition("; ")
    return fix if semicolon else otherwise
