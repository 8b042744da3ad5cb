"""``fiber trace``: says in words what a trace of a program shows.

:func:`read` reads the file, :func:`analyse` finds out where time went, and :func:`report` says so and what
to change.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from fiber._base.slowness import compare
from fiber.cli import output
from fiber.cli.options import json_option
from fiber.cli.output import plain, span
from fiber.exceptions import FiberError


@click.group("trace", short_help="Say what a trace of a program shows.")
def command() -> None:
    """Work with traces, which FIBER_TRACE=FILE or fiber.trace(FILE) write; https://ui.perfetto.dev shows them."""


@command.command("summary")
@json_option
@click.argument("file", type=click.Path(path_type=Path))
def summary(file: Path, as_json: bool) -> None:
    """Say where the time of FILE's workers went, and what to change."""
    found = [analyse(events) for events in by_pool(read(file)).values()]
    pools = [one for one in found if one.functions]
    if as_json:
        output.as_json([attrs.asdict(one) for one in pools])
        return
    if not pools:
        msg = f"{file} has no task"
        raise FiberError(msg)
    for one in pools:
        for line in report(one):
            click.echo(plain(line))


def read(file: Path) -> list[dict[str, Any]]:
    """Read the events of a trace; of one whose program was killed what is whole.

    Raises:
        FiberError: it is no trace of Fiber's.
    """
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        msg = f"{file} cannot be read: {error}"
        raise FiberError(msg) from error
    found = []
    for line in lines:
        try:
            event = json.loads(line.strip().strip(",[]") or "null")
        except (ValueError, RecursionError):
            # the last line of a file that was cut off
            continue
        if isinstance(event, dict):
            found.append(event)
    if not found or found[0].get("name") != "fiber":
        msg = f"{file} is no trace that fiber wrote"
        raise FiberError(msg)
    return found


def by_pool(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """The events of each pool by its number; 0 has those of the program."""
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        found.setdefault(event.get("pid", 0), []).append(event)
    return found


@attrs.define
class FunctionSummary:
    """The tasks of one function."""

    name: str
    count: int = 0
    #: messages with results
    messages: int = 0
    seconds: float = 0.0
    #: of the longest message, a task
    longest: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    #: tasks that failed, by the class of their error; of each class the first item, and the text of its error
    failures: dict[str, int] = attrs.field(factory=dict)
    failed_items: dict[str, int] = attrs.field(factory=dict)
    failed_texts: dict[str, str] = attrs.field(factory=dict)


@attrs.define
class SlowWorker:
    """A worker whose tasks took much longer than those of the others."""

    #: its name and host
    name: str
    function: str
    #: median of its tasks, and of the other workers' medians
    seconds: float
    others: float


@attrs.define
class Summary:
    """Time of a pool's workers by what it was spent on, in seconds."""

    pool: str
    #: at a time; one that took the place of another is the same
    workers: int
    #: from the first call to the last result
    span: float
    #: that workers were there, all together
    available: float
    #: in tasks, of all workers together
    busy: float
    #: until each worker's first task
    starting: float
    #: between the tasks of a worker
    between: float
    #: after each worker's last task
    ending: float
    functions: list[FunctionSummary]
    #: the slowest first
    slow_workers: list[SlowWorker]
    #: that were missing, on average over the span, of how many, and why in the platform's words
    missing: float
    wanted: int
    missing_reason: str
    #: workers that died with tasks, by reason, and how many tasks ran again or were given up
    deaths: dict[str, int]
    again: int
    given_up: int

    def share(self, seconds: float) -> float:
        """The part of all that is so many seconds."""
        return seconds / self.available if self.available else 0.0


def analyse(events: list[dict[str, Any]]) -> Summary:
    """Find out where the time of one pool's workers went."""
    tasks = [event for event in events if event.get("ph") == "X"]
    marks = [event for event in events if event.get("ph") == "i"]
    names = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    begin = min((e["ts"] for e in [*tasks, *marks]), default=0) / 1e6
    end = max((e["ts"] + e["dur"] for e in tasks), default=0) / 1e6
    rows: dict[int, list[dict[str, Any]]] = {}
    functions: dict[str, FunctionSummary] = {}
    for task in tasks:
        rows.setdefault(task["tid"], []).append(task)
        facts = task["args"]
        one = functions.setdefault(task["name"], FunctionSummary(task["name"]))
        one.count += facts["count"]
        one.messages += 1
        one.seconds += facts["seconds"]
        one.longest = max(one.longest, facts["seconds"] / facts["count"])
        one.bytes_in += facts["bytes_in"]
        one.bytes_out += facts["bytes_out"]
    for failed in (mark["args"] for mark in marks if mark["args"].get("kind") == "failed"):
        # of a task that was given up with its worker there is no slice
        name, error = failed["function"], failed["error"]
        one = functions.setdefault(name, FunctionSummary(name))
        one.failures[error] = one.failures.get(error, 0) + failed["count"]
        one.failed_items.setdefault(error, failed["item"])
        # a trace of an older fiber has no text
        one.failed_texts.setdefault(error, failed.get("text", ""))
    missing, wanted, reason = _missing(events, end)
    busy = sum(task["dur"] for task in tasks) / 1e6
    ends = {e["tid"]: e["ts"] / 1e6 for e in marks if e["args"].get("kind") in {"death", "end"}}
    vacant = sorted(at for at in ends.values() if at < end)
    workers, available, starting, ending = len(rows), 0.0, 0.0, 0.0
    for tid, row in sorted(rows.items(), key=lambda one: one[1][0]["ts"]):
        first, last = row[0]["ts"] / 1e6, (row[-1]["ts"] + row[-1]["dur"]) / 1e6
        there_from, there_until = begin, min(end, ends.get(tid, end))
        if vacant and vacant[0] <= first:
            # it took the place of one that had ended
            there_from, workers = vacant.pop(0), workers - 1
        available += max(0.0, there_until - there_from)
        starting += max(0.0, first - there_from)
        ending += max(0.0, there_until - last)
    span = max(0.0, end - begin)
    deaths = [mark["args"] for mark in marks if mark["args"].get("kind") == "death"]
    return Summary(
        pool=names[0] if names else "",
        workers=workers,
        span=span,
        available=available,
        busy=busy,
        starting=starting,
        between=max(0.0, available - busy - starting - ending),
        ending=ending,
        functions=sorted(functions.values(), key=lambda one: -one.seconds),
        slow_workers=_slow_workers(events, rows),
        missing=missing / span if span else 0.0,
        wanted=wanted,
        missing_reason=reason,
        deaths=dict(Counter(death["reason"] for death in deaths)),
        again=sum(death["again"] for death in deaths),
        given_up=sum(death["given_up"] for death in deaths),
    )


def _missing(events: list[dict[str, Any]], end: float) -> tuple[float, int, str]:
    """Seconds for which workers were missing, all together; how many there should be, and why they were."""
    counts = [event for event in events if event.get("ph") == "C"]
    seconds, wanted = 0.0, 0
    changes = [event["ts"] / 1e6 for event in counts[1:]]
    for event, until in zip(counts, [*changes, end], strict=bool(counts)):
        facts, begin = event["args"], event["ts"] / 1e6
        # those that start are not there yet, either
        seconds += facts["missing"] * max(0.0, min(end, until) - begin)
        if begin < end:
            wanted = max(wanted, facts["ready"] + facts["missing"])
    reasons = [event["args"]["reason"] for event in events if _kind(event) == "missing"]
    return seconds, wanted, reasons[-1] if reasons else ""


def _kind(event: dict[str, Any]) -> object:
    return event["args"].get("kind") if event.get("ph") == "i" else None


def _slow_workers(
    events: list[dict[str, Any]], rows: dict[int, list[dict[str, Any]]]
) -> list[SlowWorker]:
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    compared = compare(
        {
            tid: [(one["name"], one["args"]["seconds"] / one["args"]["count"]) for one in row]
            for tid, row in rows.items()
        }
    )
    found = [
        SlowWorker(names.get(tid, f"worker {tid}"), function, one.seconds, one.others)
        for function, of_rows in compared.items()
        for tid, one in of_rows.items()
        if one.seconds is not None and one.others is not None
    ]
    return sorted(found, key=lambda one: -one.seconds / one.others)


def report(found: Summary) -> Iterator[str]:
    """Explain where the time of a pool went, and what to change."""
    of = f" of {found.wanted}" if found.wanted > found.workers else ""
    yield (
        f"{found.pool}: {found.workers}{of} workers were busy {found.share(found.busy):.0%} of "
        f"{span(found.span)}; {found.share(found.starting):.0%} passed before their first task, "
        f"{found.share(found.between):.0%} between tasks, {found.share(found.ending):.0%} after their last"
    )
    for one in found.functions:
        if not one.count:
            continue
        yield (
            f"  {one.name}: {one.count} tasks of {span(one.seconds / one.count)}, the longest "
            f"{span(one.longest)}; {_size(one.bytes_in / one.count)} in and "
            f"{_size(one.bytes_out / one.count)} out each"
        )
    advice = list(_advice(found))
    for text in advice or ["nothing stands out"]:
        yield f"  - {text}"


#: below this share nothing is worth a word
_WORTH = 0.15
#: arguments and results that take longer to send than to use, mostly
_LARGE = 2**20
#: smaller ones that are much together
_NOTABLE, _MUCH = 2**16, 2**28
#: tasks that take no longer than what they cost
_SHORT = 1e-3
#: slow workers that are named
_NAMED = 3
#: part of the workers whose absence is told
_MISSING = 0.05


def _advice(found: Summary) -> Iterator[str]:
    for one in found.functions:
        for error, failures in one.failures.items():
            item, text = f"{one.name}[{one.failed_items[error]}]", one.failed_texts[error]
            yield (
                f"{_count(failures, 'task')} of {one.name} failed with {error}, the first was {item}"
                f"{f': {text}' if text else ''}; 'fiber top' shows the traceback (t) while the program runs, and if "
                "that is run with FIBER_KEEP_FAILED=1, 'fiber replay' runs the task again"
            )
    # a missing one of a hundred is as good as none, and one of eight is not
    if found.wanted and found.missing >= 0.5 and found.missing / found.wanted >= _MISSING:
        why = f": {found.missing_reason}" if found.missing_reason else ""
        yield f"{found.missing:.2g} of {found.wanted} workers were missing on average{why}"
    for slow in found.slow_workers[:_NAMED]:
        yield (
            f"{slow.name} took {span(slow.seconds)} for a task of {slow.function}, and the others "
            f"{span(slow.others)}: {slow.seconds / slow.others:.1f} times as long; see what else runs on its "
            "host, and 'fiber stacks' while it works"
        )
    if len(found.slow_workers) > _NAMED:
        yield f"{len(found.slow_workers) - _NAMED} more workers were that slow"
    for one in (each for each in found.functions if each.count):
        mean = one.seconds / one.count
        size_in = one.bytes_in / one.count
        is_much = size_in >= _LARGE or (size_in >= _NOTABLE and one.bytes_in >= _MUCH)
        if is_much and one.count > found.workers:
            yield (
                f"each task of {one.name} is sent {_size(size_in)}, {_size(one.bytes_in)} in all: what is the same for "
                "many of them goes once to each host as fiber.shared(value)"
            )
        if one.bytes_out / one.count >= _LARGE:
            yield (
                f"each task of {one.name} returns {_size(one.bytes_out / one.count)}: return less, or have it "
                "write where all can read"
            )
        if mean < _SHORT and one.count > found.workers and found.share(found.between) >= _WORTH:
            size = max(2, round(_SHORT * 10 / max(mean, 1e-7)))
            yield (
                f"tasks of {one.name} take {span(mean)}, about what each costs to hand out: do more in one, "
                f"or give map() a chunksize of about {min(size, max(2, one.count // found.workers // 4))}"
            )
        # the rest of the workers watch one
        if (
            found.share(found.ending) >= _WORTH
            and one.longest > 3 * mean
            and one.longest > found.span / 4
        ):
            yield (
                f"the longest task of {one.name} took {span(one.longest)}, where the mean is {span(mean)}: "
                "begin with the long ones, or divide them"
            )
    tasks = sum(one.count for one in found.functions)
    if found.share(found.ending) >= _WORTH and tasks < 3 * found.workers:
        yield (
            f"{tasks} tasks for {found.workers} workers: many had nothing left to do while the last ones "
            "ran; make smaller tasks, or ask for fewer workers"
        )
    if found.share(found.starting) >= _WORTH:
        yield (
            "workers were long in coming: keep the pool for the next map, start it before the data is read, "
            "and see in 'fiber top' what they wait for"
        )
    if found.again or found.given_up:
        reasons = ", ".join(f"{count} by {reason}" for reason, count in found.deaths.items())
        yield (
            f"workers died ({reasons}): {_count(found.again, 'task')} ran again and {found.given_up} were given up; "
            "'fiber logs' and the error's attempts have their last words"
        )
    short = any(one.count and one.seconds / one.count < _SHORT for one in found.functions)
    if found.share(found.between) >= 2 * _WORTH and not short:
        yield (
            "workers waited for the program between tasks: it makes the items, or takes the results, more "
            "slowly than they work; let imap_unordered draw ahead, and do less for each result"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"
