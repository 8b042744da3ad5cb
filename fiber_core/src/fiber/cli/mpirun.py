"""``fiber mpirun``: runs an MPI program on jobs, by the user's own ``mpirun``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fiber._ring.mpi.spec import maps_ranks, rank_and_member_counts, split_command_line
from fiber.cli.options import (
    BackendCommand,
    backend_option,
    cpus,
    megabytes,
    start_timeout_option,
    volume_option,
)
from fiber.cli.output import note
from fiber.exceptions import FiberError
from fiber.model import ResourceRequest, Volume

if TYPE_CHECKING:
    from fiber._ring.mpi.spec import MemberGroup, Need
    from fiber.cli.session import Session

_REST = "fiber.mpirun.rest"


def _group(word: str) -> MemberGroup:
    from fiber._ring.mpi.spec import parse_group

    try:
        return parse_group(word)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class _Command(BackendCommand):
    """Command that leaves options it does not know to mpirun, wherever they stand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the arguments into ours, mpirun's and the program; click parses ours."""
        known = {
            name: not getattr(option, "is_flag", False)
            for option in self.get_params(ctx)
            for name in option.opts
        }
        try:
            words = split_command_line(args, known)
        except FiberError as error:
            raise click.UsageError(str(error), ctx) from None
        ctx.meta[_REST] = words
        return super().parse_args(ctx, list(words.fiber_options))


@click.command(
    "mpirun",
    cls=_Command,
    options_metavar="[OPTIONS] [MPIRUN OPTIONS] -- PROGRAM...",
    short_help="Run an MPI program on jobs.",
)
@click.option("-np", "-n", "count", type=click.IntRange(min=1), metavar="N", help="Ranks.")
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Ranks that a member has room for.",
)
@click.option(
    "--members",
    type=click.IntRange(min=1),
    metavar="M",
    help="Jobs that ranks run in; by default as many as the ranks need.",
)
@click.option("--cpu", type=cpus, metavar="N", help="CPUs of a member, fractions allowed.")
@click.option("--memory", type=megabytes, metavar="MB", help="Memory of a member.")
@click.option("--gpu", type=click.IntRange(min=1), metavar="N", help="GPUs of a member.")
@click.option(
    "--group",
    "groups",
    type=_group,
    multiple=True,
    metavar="N[:KEY=VALUE,...]",
    help="N members with slots, cpu, memory or gpu of their own; may be given several times.",
)
@click.option(
    "--launcher-is-member",
    is_flag=True,
    help="The first member is in the job that runs mpirun.",
)
@click.option("--launcher-cpu", type=cpus, metavar="N", help="CPUs of the job with mpirun.")
@click.option("--launcher-memory", type=megabytes, metavar="MB", help="Memory of that job.")
@click.option("--image", metavar="IMAGE", help="Image that all jobs run in.")
@volume_option("Mount a volume in all jobs, at /persistent if no path is given.")
@click.option(
    "--mpirun",
    default="mpirun",
    show_default=True,
    metavar="PROGRAM",
    help="The mpirun or mpiexec to use, by its name or path in the jobs.",
)
@start_timeout_option
@backend_option
@click.pass_context
def command(
    ctx: click.Context,
    count: int | None,
    slots: int,
    members: int | None,
    cpu: float | None,
    memory: int | None,
    gpu: int | None,
    groups: tuple[MemberGroup, ...],
    launcher_is_member: bool,
    launcher_cpu: float | None,
    launcher_memory: int | None,
    image: str | None,
    volumes: tuple[Volume, ...],
    mpirun: str,
    start_timeout: float | None,
    backend: str | None,
) -> None:
    """Run PROGRAM as the ranks of an MPI job, in jobs of the backend.

    Members are started as jobs, and one more that runs mpirun, which reaches them through Fiber: no
    remote login, no keys and no operator are needed. The program and an MPI have to be where the
    jobs run; Open MPI, MPICH and Intel MPI are known.

    With --group members differ, as in --group 2:slots=4,gpu=1 --group 1:cpu=8. The other options
    say what members have whose group says nothing.

    Options that are not listed here are mpirun's; a -- has to stand after them. The output is
    mpirun's, and the exit code is that of the program.
    """
    from fiber._ring.mpi.run import run
    from fiber._ring.mpi.spec import MemberGroup, RunSpec, expand_groups, merge_needs
    from fiber.cli.session import Session, begun_program

    words = ctx.meta[_REST]
    if not words.program:
        msg = "name the program that the ranks run"
        raise click.UsageError(msg)
    if groups and members is not None:
        msg = "--members and --group both say how many members there are; give one of them"
        raise click.UsageError(msg)
    session = Session.load(backend, {"image": image})
    if gpu is not None or any(group.gpu for group in groups):
        session.plugins.find_provider("gpu")
    member = _member_spec(session, cpu, memory, gpu, image, volumes)
    if not groups:
        count, jobs = rank_and_member_counts(count, slots, members)
        groups = (MemberGroup(members=jobs),)
    for group in groups:
        _member_spec(session, group.cpu, group.memory, group.gpu, image, volumes)
    hosts, unlike = expand_groups(groups, slots, member)
    launcher = _member_spec(session, launcher_cpu, launcher_memory, None, image, volumes)
    if launcher_is_member:
        launcher = merge_needs(launcher, unlike[hosts[0].name])
    plan = RunSpec(
        program=words.program,
        count=sum(host.slots for host in hosts) if count is None else count,
        hosts=hosts,
        mpirun=mpirun,
        options=words.options,
        strict=not maps_ranks(words.options),
        member=member,
        member_needs=unlike,
        launcher=launcher,
        launcher_is_member=launcher_is_member,
        start_timeout=session.config.start_timeout if start_timeout is None else start_timeout,
    )
    with begun_program(session, start_timeout=start_timeout):
        exit_report = run(plan)
    if exit_report.why:
        note(exit_report.why)
    ctx.exit(exit_report.code)


def _member_spec(
    session: Session,
    cpu: float | None,
    memory: int | None,
    gpu: int | None,
    image: str | None,
    volumes: tuple[Volume, ...],
) -> Need:
    from fiber._ring.mpi.spec import Need

    session.require_given(
        devices="" if gpu is None else "--gpu",
        images="" if image is None else f"--image {image}",
        volumes=f"-v {volumes[0].source}" if volumes else "",
    )
    session.note_unenforced(cpu=cpu, memory=memory)
    devices = {} if gpu is None else {"gpu": gpu}
    resources = ResourceRequest(cpu=cpu, memory=memory, devices=devices)
    return Need(resources=resources, image=image, volumes=volumes)
