"""``fiber ring run`` and its like: rings of a command, begun and looked after."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import click

from fiber.cli.options import backend_option, cpus, json_option, megabytes
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber.ring_jobs.records import Record

__all__ = ["commands"]

_HEADERS = ("NAME", "PHASE", "UP", "RESTARTS", "AGE", "PROGRAM")
_PATIENCE = 30.0


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("-n", "workers", type=click.IntRange(min=1), required=True, metavar="N", help="Jobs.")
@click.option("--slots", type=click.IntRange(min=1), default=1, metavar="K", help="Ranks of a job.")
@click.option("--framework", metavar="NAME", help="Whose rendezvous is prepared: torch, jax, …")
@click.option("--min", "least", type=click.IntRange(min=1), metavar="N", help="Fewest jobs.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Most jobs.")
@click.option("--max-restarts", type=click.IntRange(min=0), default=0, metavar="N")
@click.option("--backoff-limit", type=click.IntRange(min=0), default=0, metavar="N")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
@click.option("--start-timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
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
    backend: str | None,
    **more: Any,
) -> None:
    """Run COMMAND in every rank of a ring, to its end.

    Every line has [rank@host] in front. The environment of a rank has RANK, WORLD_SIZE and what the
    framework needs. The exit code is that of the first rank that failed; Ctrl-C ends all.
    """
    import fiber
    from fiber import runtime
    from fiber.cli.session import Session
    from fiber.ring_jobs.run import run as run_ring

    session = Session.load(backend, {"cpu": cpu, "memory": memory, "image": image})
    options = {**more, "slots": slots, "framework": framework, "min": least, "max": most}
    if start_timeout is not None:
        options["start_timeout"] = start_timeout
    fiber.init(backend=session.info.name, cpu=cpu, memory=memory, image=image)
    try:
        code = run_ring(name or f"ring-{secrets.token_hex(2)}", argv, workers, **options)
    finally:
        runtime.current().close()
    ctx.exit(code)


@click.command("status")
@json_option
@click.argument("name", required=False)
def status(name: str | None, as_json: bool) -> None:
    """Show how the ring NAME stands, or all that are kept."""
    from fiber.cli import show
    from fiber.ring_jobs.records import find, records

    found = [find(name)] if name else list(records())
    told = [{"name": record.name, **_now(record)} for record in found]
    if as_json:
        show.as_json(told[0] if name else told)
        return
    rows = []
    for record, one in zip(found, told, strict=True):
        began = one.get("start_time")
        age = "" if began is None else show.age(time.time() - began)
        program = " ".join(record.about().get("argv", ()))
        up = f"{one.get('up', 0)}/{one.get('wanted', 0)}"
        rows.append((record.name, one["phase"], up, str(one.get("restarts", 0)), age, program))
    show.table(_HEADERS, rows)


@click.command("describe")
@click.argument("name")
def describe(name: str) -> None:
    """Show the conditions and events of the ring NAME."""
    from fiber.ring_jobs.records import find

    told = _now(find(name))
    click.echo(f"{name}: {told['phase']}, {told.get('restarts', 0)} restarts")
    for one in told.get("conditions", ()):
        truth = "is" if one["is_true"] else "was"
        click.echo(f"  {_at(one['time'])} {truth} {one['kind']}: {one['reason']}: {one['message']}")
    click.echo("events:")
    for one in told.get("events", ()):
        click.echo(f"  {_at(one['time'])} {one['reason']}: {one['message']}")
    for rank, code in told.get("codes", {}).items():
        click.echo(f"  rank {rank} ended with {code}")


@click.command("logs")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only this rank's.")
@click.argument("name")
def logs(name: str, rank: int | None) -> None:
    """Show what the ranks of the ring NAME wrote so far, also after its end."""
    from fiber.ring_jobs.records import find

    log = find(name).log
    if not log.exists():
        return
    with log.open(errors="replace") as lines:
        for line in lines:
            number, host, text = line.rstrip("\n").split("\t", 2)
            if rank is None or int(number) == rank:
                click.echo(f"[{number}@{host}] {text}")


@click.command("suspend")
@click.argument("name")
def suspend(name: str) -> None:
    """End the members of the ring NAME until it is resumed."""
    _tell(name, "suspend")


@click.command("resume")
@click.argument("name")
def resume(name: str) -> None:
    """Start the members of the ring NAME again."""
    _tell(name, "resume")


@click.command("delete")
@click.argument("name")
def delete(name: str) -> None:
    """End the ring NAME if it runs, and forget it, with its lines."""
    from fiber.ring_jobs.records import find

    record = find(name)
    if record.is_alive and not _is_over(record.status()):
        _tell(name, "terminate")
        deadline = time.monotonic() + _PATIENCE
        while record.is_alive and not _is_over(record.status()):
            if time.monotonic() > deadline:
                msg = f"{name} was asked to end and has not within {_PATIENCE:g} s"
                raise FiberError(msg)
            # another process's end has no event here
            time.sleep(0.1)
    record.remove()


def _tell(name: str, word: str) -> None:
    from fiber.ring_jobs.control import ask
    from fiber.ring_jobs.records import find

    record = find(name)
    if not record.is_alive:
        msg = f"{name} has ended; fiber ring status {name} says how"
        raise FiberError(msg)
    ask(record.door, word)


def _now(record: Record) -> dict[str, Any]:
    from fiber.ring_jobs.control import ask

    if record.is_alive:
        try:
            found: dict[str, Any] = ask(record.door, "status")
        except FiberError:
            # it ends just now, or begins
            found = record.status()
        return {"phase": "starting", **found}
    found = {"phase": "failed", **record.status()}
    if not _is_over(found):
        found["phase"] = "failed"
        found["message"] = "who began it was killed"
    return found


def _is_over(status: dict[str, Any]) -> bool:
    return status.get("phase") in ("succeeded", "failed")


def _at(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


commands = (run, status, describe, logs, suspend, resume, delete)
