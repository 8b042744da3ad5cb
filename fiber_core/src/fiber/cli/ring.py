"""``fiber ring``: runs rings of a command, shows and controls them, and runs MPIJob manifests.

A ring is run by this process or, with ``--detach``, by one left in the background; the other
commands read its record on disk and send requests to that process's socket.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from fiber.cli import output
from fiber.cli.options import (
    backend_option,
    cpus,
    json_option,
    megabytes,
    start_timeout_option,
)
from fiber.cli.output import note, plain
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._ring.command_rings import Record
    from fiber._ring.model import RingTiming

_HEADERS = ("NAME", "PHASE", "UP", "RESTARTS", "AGE", "PROGRAM")


@click.group("ring", short_help="Run rings of commands, and manifests of allreduce jobs.")
def command() -> None:
    """Run a command as equal ranks on any backend, and look after rings that run.

    Manifests of the MPI operator are run without the operator.
    """


@command.command("run", context_settings={"allow_interspersed_args": False})
@click.option("-n", "workers", type=click.IntRange(min=1), required=True, metavar="N", help="Jobs.")
@click.option("--slots", type=click.IntRange(min=1), default=1, metavar="K", help="Ranks of a job.")
@click.option("--framework", metavar="NAME", help="Whose rendezvous is prepared: torch, jax, …")
@click.option(
    "--open-ports",
    is_flag=True,
    help="Also with a framework whose servers ask strangers for no key.",
)
@click.option("--min", "least", type=click.IntRange(min=1), metavar="N", help="Fewest jobs.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Most jobs.")
@click.option(
    "--elastic",
    type=click.Choice(["restart", "live"]),
    default="restart",
    help="Whether all ranks start again when there are more or fewer jobs, or go on.",
)
@click.option("--max-restarts", type=click.IntRange(min=0), default=0, metavar="N")
@click.option("--backoff-limit", type=click.IntRange(min=0), default=0, metavar="N")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
@start_timeout_option
@click.option(
    "--ttl",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Forget it so long after its end; until it is deleted by default.",
)
@click.option("-d", "--detach", is_flag=True, help="Return once it is started, and leave it.")
@click.option("--cpu", type=cpus, metavar="N", help="CPUs of a job.")
@click.option("--memory", type=megabytes, metavar="MB", help="Memory of a job.")
@click.option("--image", metavar="IMAGE", help="Image that jobs run in.")
@click.option("--name", metavar="NAME", help="Name of the ring.")
@backend_option
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    argv: tuple[str, ...],
    workers: int,
    slots: int,
    framework: str | None,
    least: int | None,
    most: int | None,
    start_timeout: float | None,
    cpu: float | None,
    memory: int | None,
    image: str | None,
    name: str | None,
    ttl: float | None,
    detach: bool,
    backend: str | None,
    **more: Any,
) -> None:
    """Run COMMAND in every rank of a ring, to its end.

    Every line has [rank@host] in front. The environment of a rank has RANK, WORLD_SIZE and what the
    framework needs. The exit code is that of the first rank that failed; Ctrl-C ends all.

    With --detach its owner is left in the background of this machine, and the ring's name printed.
    """
    from fiber._ring.command_rings import Record
    from fiber.cli.session import Session, begun_program

    record = Record.begin(name or f"ring-{secrets.token_hex(2)}", argv, ttl)
    options = {**more, "slots": slots, "framework": framework, "min": least, "max": most}
    if detach:
        from fiber._ring.command_rings import detach as leave

        options["on_start"] = leave(record)
        if options["on_start"] is None:
            click.echo(record.name)
            return
    if start_timeout is not None:
        options["start_timeout"] = start_timeout
    try:
        session = Session.load(backend, {"cpu": cpu, "memory": memory, "image": image})
        with begun_program(session, cpu=cpu, memory=memory, image=image):
            # imported when the backend is known
            from fiber._ring.command_rings import run as run_ring

            code = run_ring(record, argv, workers, **options)
    except BaseException:
        # the record of a detached ring is read and removed by the process that waits for its start
        if not detach and not record.status():
            record.remove()
        raise
    ctx.exit(code)


@command.command("status")
@json_option
@click.option("--metrics", is_flag=True, help="Print what Prometheus reads.")
@click.argument("name", required=False)
def status(name: str | None, metrics: bool, as_json: bool) -> None:
    """Show how the ring NAME stands, or all that are kept."""
    from fiber._ring.command_rings import current_status, find, records

    found, timing = [find(name)] if name else list(records()), _timing()
    reports = [current_status(record, timing) for record in found]
    if metrics:
        from fiber._ring.command_rings import to_prometheus

        click.echo(to_prometheus(reports), nl=False)
        return
    if as_json:
        output.as_json(reports[0] if name else reports)
        return
    rows = []
    for record, one in zip(found, reports, strict=True):
        began = one.get("start_time")
        age = "" if began is None else output.age(time.time() - began)
        program = " ".join(record.metadata().get("argv", ()))
        up = f"{one.get('up', 0)}/{one.get('wanted', 0)}"
        rows.append((record.name, one["phase"], up, str(one.get("restarts", 0)), age, program))
    output.table(_HEADERS, rows)


@command.command("describe")
@click.argument("name")
def describe(name: str) -> None:
    """Show the ring NAME: its members, conditions and events, with reasons and times."""
    from fiber._ring.command_rings import current_status, find

    record = find(name)
    report = current_status(record, _timing())
    facts = {
        "phase": report["phase"],
        "backend": report["backend"],
        "program": " ".join(record.metadata().get("argv", ())),
        "members": f"{report.get('up', 0)} of {report.get('wanted', 0)} are up",
        "restarts": report.get("restarts", 0),
        "changes": report.get("changes", 0),
        "started": _at(report.get("start_time")),
        "ended": _at(report.get("completion_time")),
    }
    click.echo(f"name: {name}")
    for fact, value in facts.items():
        click.echo(plain(f"{fact}: {value}"))
    codes = report.get("codes", {})
    click.echo("ranks:")
    for place in report.get("placements", ()):
        for rank in range(place["first_rank"], place["first_rank"] + place["slots"]):
            ended = f", ended with {codes[str(rank)]}" if str(rank) in codes else ""
            click.echo(plain(f"  {rank} on {place['host']['name']}{ended}"))
    click.echo("conditions:")
    for one in report.get("conditions", ()):
        truth = "is" if one["is_true"] else "was"
        what = f"{truth} {one['kind']}: {one['reason']}: {one['message']}"
        click.echo(plain(f"  {_at(one['time'])} {what}"))
    click.echo("events:")
    for one in report.get("events", ()):
        click.echo(plain(f"  {_at(one['time'])} {one['reason']}: {one['message']}"))


@command.command("logs")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only this rank's.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the ring is over.")
@click.argument("name")
def logs(name: str, rank: int | None, follow: bool) -> None:
    """Show what the ranks of the ring NAME wrote so far, also after its end."""
    from fiber._ring.command_rings import find

    for number, host, text in _output_lines(find(name), follow):
        if rank is None or number == rank:
            click.echo(f"[{number}@{plain(host)}] {text}")


def _output_lines(record: Record, follow: bool) -> Iterator[tuple[int, str, str]]:
    """Yield rank, host and text of each line of a ring; with ``follow`` until its end."""
    from fiber._ring.command_rings import current_status, is_over
    from fiber.backend_parts.logfile import read_log

    timing = _timing()

    def has_ended() -> bool:
        return is_over(current_status(record, timing))

    for line in read_log(record.log, interval=timing.poll, is_over=has_ended if follow else None):
        parts = line.split("\t", 2)
        # the last one may not be whole
        if len(parts) == 3:
            yield int(parts[0]), parts[1], parts[2]


@command.command("suspend")
@click.argument("name")
def suspend(name: str) -> None:
    """End the members of the ring NAME until it is resumed."""
    _send_request(name, "suspend")


@command.command("resume")
@click.argument("name")
def resume(name: str) -> None:
    """Start the members of the ring NAME again."""
    _send_request(name, "resume")


@command.command("resize")
@click.argument("name")
@click.argument("jobs", type=click.IntRange(min=1))
def resize(name: str, jobs: int) -> None:
    """Have the ring NAME run in JOBS jobs from now on, within its --min and --max."""
    _send_request(name, f"resize {jobs}")


@command.command("delete")
@click.argument("name")
def delete(name: str) -> None:
    """End the ring NAME if it runs, and forget it, with its lines."""
    from fiber._ring.command_rings import current_status, find, is_over, send_command
    from fiber.backend_parts.liveness import Liveness

    record, timing = find(name), _timing()
    if not is_over(current_status(record, timing)):
        send_command(record, "terminate", timing)
    deadline = time.monotonic() + timing.end
    while record.liveness is not Liveness.DEAD and not is_over(record.status()):
        if time.monotonic() > deadline:
            msg = f"{name} was asked to end and has not within {timing.end:g} s"
            raise FiberError(msg)
        # no event for another process's end
        time.sleep(timing.poll)
    record.remove()


def _send_request(name: str, request: str) -> None:
    from fiber._ring.command_rings import find, send_command

    send_command(find(name), request, _timing())


def _timing() -> RingTiming:
    """Return the durations that the settings of this process give to rings."""
    from fiber._config.settings import load_config
    from fiber._ring.model import RingTiming

    return RingTiming.at(load_config({}).time_scale)


def _at(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@command.command("apply")
@click.option(
    "--strict", is_flag=True, help="Refuse a manifest with a field that is not supported."
)
@start_timeout_option
@backend_option
@click.argument("manifest", type=click.File("r"))
@click.pass_context
def apply(
    ctx: click.Context,
    manifest: IO[str],
    strict: bool,
    start_timeout: float | None,
    backend: str | None,
) -> None:
    """Run the MPIJob (v2beta1) of MANIFEST, a file of YAML or JSON, and end as its launcher does.

    Workers and the launcher are jobs of the backend. Fields that are not supported are named, each
    with its path, and refused with --strict.
    """
    from fiber._ring.mpi.run import run
    from fiber._ring.mpi.spec import (
        fit_to_capabilities,
        parse_manifest,
        run_spec,
        run_with_retries,
    )
    from fiber.cli.session import Session, begun_program

    session = Session.load(backend)
    job = fit_to_capabilities(parse_manifest(_parsed(manifest)), session.info.capabilities)
    for path in job.unsupported:
        note(f"not supported: {path}")
    if strict and job.unsupported:
        msg = f"{job.name} has fields that are not supported, and --strict refuses these"
        raise FiberError(msg)
    if job.suspended:
        note(f"{job.name} is suspended (spec.runPolicy.suspend); nothing is started")
        return
    timeout = session.config.start_timeout if start_timeout is None else start_timeout
    plan = run_spec(job, timeout)
    with begun_program(session, start_timeout=timeout):
        exit_report = run_with_retries(lambda: run(plan), job.retries, note)
    if exit_report.why:
        note(exit_report.why)
    ctx.exit(exit_report.code)


def _parsed(manifest: IO[str]) -> Any:
    text = manifest.read()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        import yaml
    except ImportError as error:
        msg = f"YAML needs another distribution: {sys.executable} -m pip install pyyaml; or write JSON"
        raise FiberError(msg) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        msg = f"{manifest.name} is no YAML: {error}"
        raise FiberError(msg) from error
