"""Durations that Fiber waits for are values of ``Timing``: no module has seconds of its own."""

import ast
import re

import attrs

import layout
from fiber.model import Timing

#: names of durations, and comments on them
NAME = re.compile(r"TIMEOUT|DELAY|INTERVAL|GRACE|PATIENCE|PAUSE|POLL|SILENCE|HEARTBEAT|SECONDS")
COMMENT = re.compile(r"\bseconds?\b", re.IGNORECASE)
#: delays by which messages are gathered are left to their modules
BATCHING = re.compile(r"\bbatch|\bgather|\btogether\b", re.IGNORECASE)
#: a setting holds as it was given, whatever the scale, and so does its default
SETTING = re.compile(r"default of the setting")
#: constants that nobody waits for, and what cannot be handed a value
EXEMPT = {
    "fiber/_base/threads.py": "how often a wait looks for signals, whatever it waits for",
    "fiber_k8s/logs.py": "times of a log",
    "fiber_ssh/remote/": "runs on hosts that have no Fiber",
}
#: what is shorter is noticed by nobody, what is longer is waited for by nobody
SHORTEST, LONGEST = 0.05, 3600
NUMERIC = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)


def numbers(value):
    """The numbers that an expression of numbers alone stands for; none for every other one."""
    if not all(isinstance(node, NUMERIC) for node in ast.walk(value)):
        return []
    found = eval(compile(ast.Expression(value), "", "eval"), {})
    found = found if isinstance(found, tuple) else (found,)
    return [number for number in found if type(number) in {int, float}]


def comment(lines, statement):
    """What the lines above a statement, and its own, say of it."""
    first = statement.lineno - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    above = [line.lstrip("#: ") for line in lines[first : statement.lineno - 1]]
    behind = " ".join(lines[statement.lineno - 1 : statement.end_lineno]).partition("#")[2]
    return " ".join([*above, behind])


def durations(source):
    """Line and names of each constant of seconds at module level."""
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        else:
            continue
        names = " ".join(map(ast.unparse, targets))
        said = comment(lines, statement)
        speaks = NAME.search(names) or COMMENT.search(said)
        is_long = any(SHORTEST <= number < LONGEST for number in numbers(statement.value))
        is_free = BATCHING.search(said) or SETTING.search(said)
        if speaks and is_long and not is_free:
            yield statement.lineno, names


def test_no_module_has_durations_of_its_own():
    found = [
        f"{path.relative_to(layout.ROOT)}:{line}: {names}"
        for _, path in layout.modules(*layout.SOURCES)
        if path.name != "timing.py" and not any(part in str(path) for part in EXEMPT)
        for line, names in durations(path.read_text(encoding="utf-8"))
    ]

    assert not found, "\n".join(("these belong into Timing, or a backend's own durations:", *found))


def test_somebody_waits_for_every_duration():
    sources = "".join(
        path.read_text(encoding="utf-8")
        for _, path in layout.modules(*layout.SOURCES)
        if path.name != "timing.py"
    )
    names = {field.name for field in attrs.fields(Timing)} - {"scale"}

    assert {name for name in names if not re.search(rf"timing\(?\)?\.{name}\b", sources)} == set()
