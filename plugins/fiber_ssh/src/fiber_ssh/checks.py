"""Checks of the hosts for ``fiber doctor``."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from fiber.backend_parts.address import interfaces
from fiber.exceptions import BackendError, FiberError, ResourceError
from fiber.model import BackendContext, Check, Job, JobSpec, JobState, Peers
from fiber_ssh.address import UNREACHABLE, listen_address
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.config import LEASE, SshConfig
from fiber_ssh.host_state import HostState
from fiber_ssh.hosts import read_hosts
from fiber_ssh.routes import Router
from fiber_ssh.scheduler import JobScheduler
from fiber_ssh.submission import Submission

_CODE = "import socket; print(socket.gethostname())"


def run_checks(context: BackendContext) -> Iterator[Check]:
    """Check every host, one after the other, with a job on each, then their connections.

    Args:
        context: the backend's; each check is a run of its own.
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
            scheduler = JobScheduler(
                (host,),
                config,
                backend="ssh",
                run_id=secrets.token_hex(4),
                lease=LEASE,
                timing=context.timing,
                providers=context.providers,
            )
            stack.callback(scheduler.close)
            host_state = scheduler.host_states[host.name]
            yield from _check_host(scheduler, host_state, sorted(context.providers))
            if host_state.link.is_up:
                links.append(host_state.link)
        yield from _check_connections(links, config)


def _check_host(
    scheduler: JobScheduler, host_state: HostState, kinds: list[str]
) -> Iterator[Check]:
    name = f"host {host_state.host.name}"
    try:
        scheduler.wait_connected()
    except BackendError as error:
        why = host_state.link.failure or str(error)
        fix = _fix(why, f"run ssh {host_state.host.name} true, and mend what it says")
        yield Check(name=name, ok=False, detail=why, fix=fix)
        return
    info = host_state.link.info
    assert info is not None
    python = f"Python {'.'.join(map(str, info.python))} at {info.executable}"
    capacity = (
        f"{host_state.capacity().slots:g} slots, {info.cpus} CPUs, {info.memory} MB of memory"
    )
    yield Check(name=name, ok=True, detail=f"{capacity}, {python}")
    if host_state.incompatibility:
        yield Check(
            name=f"{name}: fiber",
            ok=False,
            detail=host_state.incompatibility,
            fix=_fix(host_state.incompatibility),
        )
    else:
        yield Check(name=f"{name}: fiber", ok=True, detail=f"fiber-core {info.fiber}")
    for kind in kinds:
        try:
            found = host_state.probe(kind)
        except (BackendError, ResourceError) as error:
            fix = f"mend it, or do without {kind!r} there"
            yield Check(name=f"{name}: {kind}", ok=False, detail=str(error), fix=fix)
        else:
            yield Check(name=f"{name}: {kind}", ok=True, detail=f"{len(found)} found")
    yield _check_job(scheduler, info.executable, name)


def _check_connections(links: Sequence[AgentLink], config: SshConfig) -> Iterator[Check]:
    """Check the routes of jobs on these hosts, as for the processes of a pool."""
    if not links:
        return
    router = Router(config, lambda: links)
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
                route = router.route(link, [url])
            except FiberError as error:
                yield Check(name=name, ok=False, detail=str(error), fix=_fix(str(error)))
                continue
            detail = "its processes dial this program"
            if route.uses_streams:
                detail = "over streams of its ssh connection, for not all hosts can be dialled"
            yield Check(name=name, ok=True, detail=detail)


@contextlib.contextmanager
def _listening(config: SshConfig) -> Iterator[str]:
    """Listen as a process with a pool does; the URL to dial."""
    peers = Peers(same_host=False, directory="", name="doctor", config=config, environ=os.environ)
    chosen = listen_address(peers, interfaces())
    host = urlsplit(chosen.bind_url).hostname or UNREACHABLE
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the kernel accepts connections; nothing is sent on them
    with socket.create_server((host, 0), family=family) as listener:
        listener.setblocking(True)
        address = chosen.advertise_host or host
        address = f"[{address}]" if ":" in address else address
        yield f"tls+tcp://{address}:{listener.getsockname()[1]}"


def _check_job(scheduler: JobScheduler, python: str, name: str) -> Check:
    run_id = str(scheduler.run_id)
    begin = time.monotonic()
    argv = (python, "-I", "-S", "-c", _CODE)
    spec = JobSpec(run_id=run_id, name="doctor", argv=argv)
    job = Job(id=f"{run_id}-doctor", name="doctor", run_id=run_id, backend="ssh", argv=argv)
    try:
        scheduler.submit(Submission(job, spec))
        for _, status in scheduler.feed.events(run_id):
            if status.state.is_terminal:
                ok = status.state is JobState.SUCCEEDED
                took = f"it ran and ended in {time.monotonic() - begin:.2f} s"
                detail = took if ok else f"it ended by {status.reason}: {status.message}"
                fix = "" if ok else _fix(status.message, f"run {python} on the {name} by hand")
                return Check(name=f"{name}: a job", ok=ok, detail=detail, fix=fix)
    except FiberError as error:
        return Check(name=f"{name}: a job", ok=False, detail=str(error), fix=_fix(str(error)))
    return Check(name=f"{name}: a job", ok=False, detail="no status of it arrived", fix="try again")


def _fix(why: str, otherwise: str = "mend that and try again") -> str:
    """The remedy in an error's text, which follows its last semicolon."""
    _, semicolon, fix = why.rpartition("; ")
    return fix if semicolon else otherwise
