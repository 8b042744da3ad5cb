"""``fiber top``: shows what runs on this host, again and again.

:class:`Board` keeps what was asked for and how fast it changes, :class:`View` what is shown of it;
:func:`render` draws both. Nothing here changes a run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber.cli import output
from fiber.cli.options import BackendCommand, backend_option, json_option
from fiber.cli.output import note, plain, span
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fiber._watch.status import Asker
    from fiber.cli.runs import Answer, LocalRun, RemoteRuns

#: rates that are kept of each pool
_HISTORY = 30
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {"busy": "green", "waiting": "yellow", "starting": "yellow", "suspended": "yellow"}
_POOL_HEADERS = ("RUN", "POOL", "WORKERS", "WAIT", "HELD", "DONE", "FAILED", "AGAIN", "RATE", "")
_WORKER_HEADERS = ("RUN", "WORKER", "STATE", "PID", "HOST", "HELD", "TIME", "FUNCTION")
#: what workers are sorted by, and of which state they are shown, each the next one after a key
_ORDERS = ("name", "state", "host", "tasks", "time")
_FILTERS = ("", "busy", "slow", "idle", "waiting", "starting", "leaving")
#: most slow workers that are told of above the table
_MOST_SLOW = 3
#: of the traceback that is shown, and of a reason
_MOST_LINES, _MOST_REASON = 12, 3
_KEYS = (
    "q: quit",
    "s: sort the workers by name, state, host, tasks held, or time of the current task",
    "f: show only workers of one state, or only slow ones",
    "e: show or hide the last errors",
    "t: show or hide the traceback of the last error",
    "?: show or hide these keys; h does the same",
)
_NOT_KEPT = "arguments were not kept: start with FIBER_KEEP_FAILED=1 to run such a task again"
_SILENT = "no program answers for it; 'fiber ps' lists its jobs"


@click.command("top", cls=BackendCommand, short_help="Show what runs, live.")
@click.option("--once", is_flag=True, help="Print it once, for scripts.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, help="Seconds between looks."
)
@click.option("--answer", is_flag=True, hidden=True, help="Answer for fiber top elsewhere.")
@json_option
@backend_option
@click.argument("run", metavar="[RUN]", default="")
def command(
    run: str, once: bool, interval: float, answer: bool, as_json: bool, backend: str | None
) -> None:
    """Show the pools, workers and processes of your runs.

    Programs on this host answer themselves. For runs of this host whose program is a job elsewhere a
    command in that job does, as with fiber exec; with --backend in all jobs there, whoever started
    them. RUN, an id of a run or of its job, or the beginning of one, is for one of them. Keys: q quits, s
    sorts the workers by something else, f shows those of another state, e shows or hides errors, t the
    traceback of the last one, ? all keys. --json prints once.
    """
    from fiber.cli.runs import answer_requests, runs_elsewhere
    from fiber.model import Timing

    timing = Timing()
    # what is asked once may wait for a busy program, what is shown again and again may not
    is_live = not (once or as_json or answer)
    timeout = timing.parent_answer if is_live else timing.connect
    if answer:
        with contextlib.closing(Board(run, timeout)) as board:
            answer_requests(board.answer, timing.idle_thread)
        return
    run, remote = runs_elsewhere(run, backend, "fiber top", timing)
    with contextlib.closing(remote), contextlib.closing(Board(run, timeout, remote)) as board:
        board.look(waits=not is_live)
        if as_json:
            output.as_json(board.data())
            for ident, why in board.silent():
                note(f"{ident}: {why}")
        elif once:
            _print(board)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _follow(board, interval)
        else:
            msg = "fiber top needs a terminal; --once prints what there is, --json for programs"
            raise FiberError(msg)


@attrs.define
class _Watched:
    """A run that is watched."""

    description: dict[str, Any]
    asker: Asker | None = None
    #: the last answer; None where nobody answers
    status: dict[str, Any] | None = None
    #: the run whose job gave it, where it is elsewhere
    outer: str = ""
    #: when that came
    when: float = 0.0


class Board:
    """The runs and how they change.

    Args:
        word: beginning of the ids of the runs that are meant.
        timeout: seconds for which a run of this host may take to answer.
        remote: runs elsewhere; None for those of this host alone.
    """

    def __init__(
        self, word: str = "", timeout: float = 1.0, remote: RemoteRuns | None = None
    ) -> None:
        self._word = word
        self._timeout = timeout
        self._remote = remote
        self._runs: dict[str, _Watched] = {}
        #: by run and pool: when it was asked, and how many tasks were done
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}
        self._rates: dict[tuple[str, str], deque[float]] = {}

    def look(self, *, waits: bool = False) -> None:
        """Ask all runs how they are.

        Args:
            waits: True to wait until those elsewhere have answered; else what they said last is taken.

        Raises:
            FiberError: there is no run of that word any more.
        """
        from fiber.cli.runs import detached_runs, find_runs

        remote = self._remote
        # a run elsewhere may be told by a job of one with another id
        found = {run.id: run for run in find_runs("" if remote is not None else self._word)}
        for ident, run in found.items():
            self._look_here(ident, run)
        answers = {}
        if remote is not None:
            remote.look(
                {
                    run.id: run.description
                    for run in (*found.values(), *detached_runs())
                    if run.id not in self._runs or self._runs[run.id].asker is None
                }
            )
            if waits:
                remote.wait()
            answers = {one.id: one for one in remote.answers() if one.id not in found}
        for ident in self._runs.keys() - found.keys() - answers.keys():
            self._close(self._runs.pop(ident))
        for answer in answers.values():
            self._take_answer(answer)
        if not len(self) and (remote is None or not remote.is_pending):
            # says that there is none
            find_runs(self._word)

    def answer(self) -> list[dict[str, Any]]:
        """Statuses for ``fiber top`` on another host."""
        self.look()
        return self.data()

    def _look_here(self, ident: str, run: LocalRun) -> None:
        from fiber._watch.status import Asker

        watched = self._runs.setdefault(ident, _Watched(run.description, outer=run.outer))
        try:
            if watched.asker is None:
                watched.asker = Asker(run.folder, self._timeout)
            self.take(ident, watched.asker.status(), time.monotonic())
        except FiberError:
            self._close(watched)

    def _take_answer(self, answer: Answer) -> None:
        watched = self._runs.setdefault(answer.id, _Watched(answer.description, outer=answer.outer))
        if answer.status is None:
            watched.status = None
        elif watched.when != answer.when:
            watched.when = answer.when
            self.take(answer.id, answer.status, answer.when)

    def take(self, ident: str, status: dict[str, Any], now: float) -> None:
        """Take the answer of a run."""
        watched = self._runs.setdefault(ident, _Watched({}))
        watched.status = status
        for pool in status["pools"]:
            key = ident, pool["name"]
            before = self._counts.get(key)
            if before is not None and now > before[0]:
                rates = self._rates.setdefault(key, deque(maxlen=_HISTORY))
                rates.append(max(0.0, (pool["done"] - before[1]) / (now - before[0])))
            self._counts[key] = now, pool["done"]

    def close(self) -> None:
        """Close the connections."""
        for watched in self._runs.values():
            self._close(watched)

    def data(self) -> list[dict[str, Any]]:
        """Statuses as JSON, for programs."""
        return [
            {**watched.description, "run": ident, "status": watched.status}
            for ident, watched in self._shown()
        ]

    def pools(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The pools of all runs that answer, each with the id of its run."""
        for ident, watched in self._shown():
            for pool in (watched.status or {}).get("pools", ()):
                yield ident, pool

    def workers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Their workers, and their other processes, each with the id of its run."""
        for ident, pool in self.pools():
            for worker in pool["workers"]:
                yield ident, worker
        for ident, process in self.processes():
            yield ident, {**process, "running": 0, "function": "", "seconds": 0.0}

    def processes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The processes that are no workers, each with the id of its run."""
        for ident, watched in self._shown():
            for process in (watched.status or {}).get("processes", ()):
                yield ident, process

    def slow(self) -> list[tuple[str, dict[str, Any]]]:
        """The workers whose current task takes much longer than usual, the longest first."""
        found = [one for one in self.workers() if one[1].get("is_slow") and not _is_behind(one[1])]
        return sorted(found, key=lambda one: -one[1]["seconds"])

    def behind(self) -> list[tuple[str, dict[str, Any]]]:
        """The workers whose tasks take much longer than the others', the slowest first."""
        found = [one for one in self.workers() if _is_behind(one[1])]
        return sorted(found, key=lambda one: -one[1]["lately"] / one[1]["others"])

    def silent(self) -> list[tuple[str, str]]:
        """The runs that nobody answers for, each with the reason."""
        troubles = {} if self._remote is None else self._remote.troubles()
        found = {ident: _SILENT for ident, one in self._shown() if one.status is None}
        # those whose programs are in jobs have no program here, and often nothing else
        found.update((k, v) for k, v in troubles.items() if v and k.startswith(self._word))
        # what a job tells of is shown as a run of its own
        return [(k, v) for k, v in found.items() if troubles.get(k) != ""]

    def rates(self, ident: str, pool: str) -> list[float]:
        """Tasks a second of a pool, oldest first."""
        return list(self._rates.get((ident, pool), ()))

    def __len__(self) -> int:
        return sum(1 for _ in self._shown())

    def _shown(self) -> Iterator[tuple[str, _Watched]]:
        from fiber.cli.runs import is_meant

        for ident, watched in self._runs.items():
            if is_meant(self._word, ident, watched.outer):
                yield ident, watched

    def _close(self, watched: _Watched) -> None:
        if watched.asker is not None:
            watched.asker.close()
        watched.asker = watched.status = None


@attrs.define
class View:
    """View of a board, which keys change."""

    #: what workers are sorted by
    order: str = _ORDERS[0]
    #: state of the workers that are shown; "" for all
    state: str = _FILTERS[0]
    #: True where the last errors are shown
    errors: bool = True
    #: True where the traceback of the last one is shown
    traceback: bool = False
    #: True where the keys are shown
    help: bool = False
    #: True once it is to end
    is_over: bool = False

    def press(self, key: str, board: Board) -> None:
        """Take a key; those that mean nothing change nothing."""
        if key in {"q", "\x03", "\x04"}:
            self.is_over = True
        elif key == "s":
            self.order = _next(_ORDERS, self.order)
        elif key == "f":
            # what nobody is in is left out
            self.state = _next(_FILTERS, self.state)
            while self.state and not self.select(board):
                self.state = _next(_FILTERS, self.state)
        elif key == "e":
            self.errors = not self.errors
        elif key == "t":
            self.traceback = not self.traceback
        elif key in {"?", "h"}:
            self.help = not self.help

    def select(self, board: Board) -> list[tuple[str, dict[str, Any]]]:
        """The workers that are shown, in order."""
        if self.state == "slow":
            kept = board.behind() + board.slow()
        else:
            kept = [
                one for one in board.workers() if not self.state or one[1]["state"] == self.state
            ]
        keys = {
            "state": lambda one: (one[1]["state"], one[0]),
            "host": lambda one: (one[1]["host"], one[0]),
            "tasks": lambda one: -one[1]["running"],
            "time": lambda one: -one[1].get("seconds", 0.0),
        }
        key = keys.get(self.order)
        return kept if key is None else sorted(kept, key=key)


def _is_behind(worker: dict[str, Any]) -> bool:
    # a program with an older fiber does not tell
    return bool(worker.get("others"))


def _next(among: tuple[str, ...], current: str) -> str:
    return among[(among.index(current) + 1) % len(among)]


def _pool_row(board: Board, ident: str, pool: dict[str, Any]) -> tuple[str, ...]:
    rates = board.rates(ident, pool["name"])
    numbers = (pool[name] for name in ("waiting", "running", "done", "failed", "retried"))
    return (
        ident,
        pool["name"],
        f"{pool['ready']}/{pool['wanted']}",
        *map(str, numbers),
        f"{rates[-1]:.3g}/s" if rates else "",
        sparkline(rates),
    )


def _worker_row(ident: str, worker: dict[str, Any]) -> tuple[str, ...]:
    return (
        ident,
        worker["name"],
        worker["state"],
        "" if worker["pid"] is None else str(worker["pid"]),
        worker["host"],
        str(worker["running"] or ""),
        _time_of(worker),
        worker["function"],
    )


def _time_of(worker: dict[str, Any]) -> str:
    """Duration of a worker's task so far, with the factor to the usual one where that is large."""
    # a program with an older fiber does not tell
    seconds = worker.get("seconds", 0.0)
    if not worker["running"] or not seconds:
        return ""
    return f"{span(seconds)}{_times(worker)}" if worker.get("is_slow") else span(seconds)


def _times(worker: dict[str, Any]) -> str:
    return f", {worker['seconds'] / worker['usual']:.3g}x" if worker["usual"] else ""


def _reasons(board: Board) -> Iterator[str]:
    for ident, pool in board.pools():
        if pool["reason"]:
            missing = pool["wanted"] - pool["ready"]
            are = "is" if missing == 1 else "are"
            yield f"{ident} {pool['name']}: {missing} of {pool['wanted']} workers {are} missing: {pool['reason']}"
    for ident, process in board.processes():
        if process["reason"]:
            yield f"{ident} {process['name']}: {process['reason']}"
    behind, slow = board.behind(), board.slow()
    for ident, worker in behind[:_MOST_SLOW]:
        yield (
            f"{ident} {worker['name']} on {worker['host']} is slow: {span(worker['lately'])} a task "
            f"lately, the others {span(worker['others'])} ({worker['lately'] / worker['others']:.3g}x)"
        )
    if len(behind) > _MOST_SLOW:
        yield f"{len(behind) - _MOST_SLOW} more workers are slow; f shows them"
    for ident, worker in slow[:_MOST_SLOW]:
        usual = f", the median is {span(worker['usual'])}" if worker["usual"] else ""
        yield (
            f"{ident} {worker['name']} on {worker['host']}: {worker['function']} for "
            f"{span(worker['seconds'])}{usual}"
        )
    if len(slow) > _MOST_SLOW:
        yield f"{len(slow) - _MOST_SLOW} more workers are as slow; f shows them"
    for ident, why in board.silent():
        yield f"{ident}: {why}"


def _errors(board: Board) -> list[str]:
    found = sorted(
        (error["when"], f"{ident} {error['function']}[{error['item']}]: {error['error']}")
        for ident, pool in board.pools()
        for error in pool["errors"]
    )
    return [text for _, text in found]


def _traceback(board: Board) -> list[str]:
    """The traceback of the last error, with its worker and how to run it again."""
    found = [
        (error["when"], ident, error) for ident, pool in board.pools() for error in pool["errors"]
    ]
    if not found:
        return ["no task has failed"]
    _, ident, error = max(found, key=lambda one: one[0])
    by = f" on {error['worker']}" if error.get("worker") else ""
    lines = (error.get("traceback") or error["error"]).rstrip().splitlines()
    if len(lines) > _MOST_LINES:
        lines = ["…", *lines[-_MOST_LINES:]]
    replay = error.get("replay")
    again = f"run it again: fiber replay --pdb {replay}" if replay else _NOT_KEPT
    return [f"{ident} {error['function']}[{error['item']}]{by}:", *lines, again]


def sparkline(values: list[float]) -> str:
    """Return values as bars of one character each, the highest of them whole."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int(8 * value / top))] for value in values)


def _print(board: Board) -> None:
    pools = [_pool_row(board, ident, pool)[:-2] for ident, pool in board.pools()]
    output.table(_POOL_HEADERS[:-2], pools)
    print()
    workers = [_worker_row(ident, worker) for ident, worker in board.workers()]
    output.table(_WORKER_HEADERS, workers, styles=_STYLES)
    for line in (*_reasons(board), *_errors(board)):
        note(line)


def render(board: Board, view: View, height: int, width: int) -> RenderableType:
    """Draw a board.

    Args:
        board: the runs.
        view: what is shown of them.
        height: lines that there are.
        width: characters of a line.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def line(text: str, style: str = "") -> Text:
        # texts of jobs and platforms give no orders to the terminal
        return Text(plain(" ".join(text.split())), style, no_wrap=True, overflow="ellipsis")

    def table(
        headers: tuple[str, ...], rows: list[tuple[str, ...]], style: Sequence[str] = ()
    ) -> Table:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for header in headers:
            shown.add_column(header, no_wrap=True, overflow="ellipsis")
        for row, of_row in zip(rows, style or itertools.repeat(""), strict=False):
            shown.add_row(*(line(cell, _STYLES.get(cell, "")) for cell in row), style=of_row)
        return shown

    pools = list(board.pools())
    rates = [board.rates(ident, pool["name"])[-1:] for ident, pool in pools]
    ready = sum(pool["ready"] for _, pool in pools)
    head = f"fiber top: {len(board)} {'run' if len(board) == 1 else 'runs'}, {ready} workers"
    # from one look alone it is not known
    if any(rates) or not pools:
        head += f", {sum(map(sum, rates)):.3g} tasks/s"
    if slow := len(board.behind()) + len(board.slow()):
        head += f", {slow} slow"
    reasons = [
        line(part, "yellow")
        for text in _reasons(board)
        for part in textwrap.wrap(
            " ".join(text.split()), width, subsequent_indent="    ", max_lines=_MOST_REASON
        )
    ]
    errors = [line(text, "red") for text in (_errors(board) if view.errors else [])[-5:]]
    below = _traceback(board) if view.traceback else []
    errors += [Text(plain(text), "red", no_wrap=True, overflow="ellipsis") for text in below]
    errors += [line(text) for text in (_KEYS if view.help else ())]
    selected = view.select(board)
    rows = [_pool_row(board, ident, pool) for ident, pool in pools]
    # a head and a foot, the heads of tables, a line between
    room = max(0, height - len(rows) - len(reasons) - len(errors) - 7)
    foot = f"q quit, s sort: {view.order}, f show: {view.state or 'all'}, e errors, t traceback, ? keys"
    if len(selected) > room:
        foot += f", {len(selected) - room} more workers"
    return Group(
        line(head, "bold"),
        line(""),
        table(_POOL_HEADERS, rows),
        *reasons,
        line(""),
        table(
            _WORKER_HEADERS,
            [_worker_row(*one) for one in selected[:room]],
            [
                "bold red" if _is_behind(one) or one.get("is_slow") else ""
                for _, one in selected[:room]
            ],
        ),
        *errors,
        line(foot, "dim"),
    )


def _follow(board: Board, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console, view = Console(highlight=False), View()
    with (
        _keys() as terminal,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        due = time.monotonic() + interval
        while not view.is_over:
            live.update(render(board, view, console.height, console.width), refresh=True)
            left = due - time.monotonic()
            if left <= 0:
                board.look()
                due = time.monotonic() + interval
            elif select.select([terminal], [], [], left)[0]:
                pressed = os.read(terminal, 64).decode("utf-8", "replace")
                for key in pressed or "q":
                    view.press(key, board)


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Read keys one by one within the block; yields the descriptor."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
