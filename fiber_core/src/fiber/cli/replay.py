"""``fiber replay``: runs a failed task again, here, with the arguments that it had."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

import click

from fiber.cli import output
from fiber.cli.output import note, plain
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._workers.kept_tasks import KeptTask

_HEADERS = ("TASK", "AGE", "FUNCTION", "ITEM", "ERROR")
#: longest argument that is shown
_LONGEST = 200


@click.command("replay", short_help="Run a failed task again, here.")
@click.option("--pdb", "debugs", is_flag=True, help="Enter the debugger where it raises.")
@click.option("--show", "shows", is_flag=True, help="Only show what it is called with.")
@click.argument("task", metavar="[TASK]", required=False)
def command(task: str | None, debugs: bool, shows: bool) -> None:
    """Run TASK again in this process: a failed task that was kept, by keep_failed=True or the setting.

    Without TASK the kept ones are listed, the newest first. TASK may be the beginning of a name that means one. Its program
    is loaded as in a worker, so it runs the code as it is now. The exit code is 1 where it raises.
    """
    from fiber._workers import kept_tasks

    found = list(kept_tasks.kept())
    if task is None:
        # the newest is what one looks for
        _list(found[::-1])
        if not found:
            note("no failed task was kept; start the program with FIBER_KEEP_FAILED=1 to keep them")
        return
    chosen = _chosen(found, task)
    _load_program(chosen)
    function, args, kwargs = chosen.load()
    shown = [*map(_short, args), *(f"{key}={_short(value)}" for key, value in kwargs.items())]
    click.echo(plain(f"{_name_of(function)}({', '.join(shown)})"))
    if shows:
        return
    try:
        result = function(*args, **kwargs)
    # it is the program's own, of any class
    except BaseException as error:
        trace = error.__traceback__
        error = error.with_traceback(None if trace is None else trace.tb_next)
        traceback.print_exception(error)
        if debugs:
            import pdb  # noqa: T100 - what was asked for

            pdb.post_mortem(error.__traceback__)
        raise SystemExit(1) from None
    click.echo(plain(f"returned {_short(result)}"))


def _list(found: list[KeptTask]) -> None:
    now, rows = time.time(), []
    for one in found:
        try:
            said = one.describe()
        except FiberError as error:
            rows.append((one.task, "", "", "", str(error)))
            continue
        cells = (output.age(now - said["when"]), said["function"], str(said["item"]), said["error"])
        rows.append((one.task, *cells))
    output.table(_HEADERS, rows)


def _chosen(found: list[KeptTask], word: str) -> KeptTask:
    exact = [one for one in found if one.task == word]
    fitting = exact or [one for one in found if one.task.startswith(word)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(one.task for one in fitting)
        msg = f"{word!r} may mean {names}; give more of the name"
    else:
        msg = f"no task {word!r} is kept; 'fiber replay' lists those there are"
    raise FiberError(msg)


def _load_program(task: KeptTask) -> None:
    """Load the main module of its program as a worker does."""
    from fiber._runtime import bootstrap

    bootstrap.fresh_main()
    bootstrap.prepare({"name": "replay", **task.describe()["preparation"]})


def _name_of(function: Any) -> str:
    from fiber._tasks.call import name_of

    return name_of(function)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    # the program's own
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
