"""``fiber stacks``: shows where every process of a run on this host is."""

from __future__ import annotations

import os
import re
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber.cli import output
from fiber.cli.options import json_option
from fiber.cli.output import note, plain
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber.cli.runs import LocalRun

_FRAME = re.compile(r'  File "(.*)", line ')
_PACKAGE = str(Path(__file__).absolute().parents[1]) + os.sep
_PROGRAM = "the program"
_LIBRARY = sysconfig.get_path("stdlib")


@attrs.define
class Stacks:
    """The stacks of one process."""

    #: its number
    pid: int
    #: its file
    path: Path
    #: how much it had written before
    size: int
    #: what it has written since; "" where it has not answered
    text: str = ""
    #: True while it may write yet
    is_open: bool = True


@click.command("stacks", short_help="Show where the processes of a run are.")
@click.option("-a", "--all", "everything", is_flag=True, help="Show Fiber's own threads, too.")
@click.option("--pid", type=int, multiple=True, help="Only this process; may be given again.")
@json_option
@click.argument("run", metavar="[RUN]", default="")
def command(run: str, everything: bool, pid: tuple[int, ...], as_json: bool) -> None:
    """Print the Python stacks of every process of RUN on this host, most recent call first.

    RUN, an id or the beginning of one, may be left out where there is one run. The processes go on as
    they were; one that hangs in C code shows where, too.
    """
    from fiber.cli.runs import find_runs
    from fiber.model import Timing

    runs = [one for one in find_runs(run) if _files(one.folder)]
    if len(runs) != 1:
        raise FiberError(_which(runs, run))
    found = [one for one in _processes(runs[0].folder) if not pid or one.pid in pid]
    read_stacks(found, Timing().report)
    names = _names(runs[0])
    if as_json:
        output.as_json(
            [{"pid": one.pid, "name": names.get(one.pid), "stacks": one.text} for one in found]
        )
        return
    for one in sorted(found, key=lambda one: (names.get(one.pid) != _PROGRAM, one.pid)):
        click.echo(f"== {names.get(one.pid, 'process')}, pid {one.pid} ==")
        if one.text:
            click.echo(plain(one.text if everything else without_ours(one.text)))
        else:
            note(f"process {one.pid} does not answer: it is {_state(one.pid)}")


def read_stacks(processes: Iterable[Stacks], timeout: float) -> None:
    """Ask processes for their stacks and read what they write.

    Args:
        processes: they are given their text.
        timeout: seconds to wait for all of them.
    """
    from fiber._runtime.inspection import SIGNAL

    asked = []
    for one in processes:
        try:
            os.kill(one.pid, SIGNAL)
        except ProcessLookupError:
            # it has ended
            continue
        asked.append(one)
    deadline = time.monotonic() + timeout
    while any(one.is_open for one in asked) and time.monotonic() < deadline:
        # no event tells that a file grows, on every system
        time.sleep(0.02)
        for one in asked:
            before, one.text = one.text, _read(one.path)[one.size :].decode("utf-8", "replace")
            # it writes without a pause, and blocks nobody who does so
            one.is_open = not one.text or one.text != before


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _files(folder: Path) -> list[Path]:
    from fiber._agent.rundir import STACKS

    return sorted(folder.glob(f"*{STACKS}"))


def _processes(folder: Path) -> Iterator[Stacks]:
    """The processes that have a file there, and will not take the signal for anything else."""
    for path in _files(folder):
        written = _read(path)
        word = written.partition(b"\n")[0]
        if word.isdigit() and _listens(int(word), path):
            yield Stacks(int(word), path, len(written))


def _listens(pid: int, path: Path) -> bool:
    from fiber.backend_parts.liveness import start_time

    descriptors = Path(f"/proc/{pid}/fd")
    try:
        if Path("/proc/self/fd").is_dir():
            # its task may have closed the file and opened others, which must stay as they are
            return any(_leads_to(one, path) for one in descriptors.iterdir())
        started = start_time(pid)
        # a later process may have its number
        born = getattr(path.stat(), "st_birthtime", 0.0)
    except OSError:
        return False
    return started is not None and started <= born


def _leads_to(link: Path, path: Path) -> bool:
    try:
        return os.path.samestat(link.stat(), path.stat())
    except OSError:
        # closed meanwhile
        return False


def without_ours(text: str) -> str:
    """Return stacks without Fiber's own threads, and without what called the program's code."""
    # the main thread is the last one
    *others, main = text.rstrip().split("\n\n")
    kept = [_without_callers(one) for one in others if not _is_ours(one)]
    hidden = len(others) - len(kept)
    said = [f"({hidden} more threads are Fiber's own; --all shows them)"] if hidden else []
    return "\n\n".join([*kept, _without_callers(main), *said])


def _is_ours(stack: str) -> bool:
    frames = stack.splitlines()[1:]
    return any(_PACKAGE in one for one in frames) and all(map(_is_no_programs, frames))


def _without_callers(stack: str) -> str:
    head, *frames = stack.splitlines()
    last = max((at for at, one in enumerate(frames) if not _is_no_programs(one)), default=None)
    # one that runs nothing of the program's is told whole
    return stack if last is None else "\n".join([head, *frames[: last + 1]])


def _is_no_programs(frame: str) -> bool:
    """True for a frame of Fiber's or of the standard library."""
    found = _FRAME.match(frame)
    file = found[1] if found else "<"
    is_library = file.startswith((_LIBRARY, "<")) and "site-packages" not in file
    return is_library or _PACKAGE in file


def _names(run: LocalRun) -> dict[int, str]:
    """Names that a program has for its processes, by their process ids."""
    from fiber._watch.status import Asker
    from fiber.model import Timing

    names = {int(run.description.get("pid", 0)): _PROGRAM}
    try:
        with Asker(run.folder, Timing().connect) as asker:
            status = asker.status()
    except FiberError as error:
        # it may be what hangs
        note(str(error))
        return names
    for pool in status["pools"]:
        for worker in pool["workers"]:
            doing = f" ({worker['state']}: {worker['function']})" if worker["function"] else ""
            names[worker["pid"]] = f"{worker['name']} of {pool['name']}{doing}"
    names.update({process["pid"]: process["name"] for process in status["processes"]})
    return names


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "ending, or stopped"
    found = re.search(r"^State:\s+(.*)$", text, re.MULTILINE)
    return found[1] if found else "in a state that the system does not tell"


def _which(runs: list[LocalRun], word: str) -> str:
    if not runs:
        return "no run of yours on this host has processes here; 'fiber ps' lists jobs elsewhere"
    ids = ", ".join(_described(runs))
    return f"{len(runs)} runs of yours are here{' that begin so' if word else ''}: {ids}; name one"


def _described(runs: Iterable[LocalRun]) -> Iterator[str]:
    for run in runs:
        program: Any = run.description.get("program") or ["?"]
        yield f"{run.id} ({program[0]})"
