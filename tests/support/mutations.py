"""Small seeded faults in the sources, to see whether tests find them.

``python tests/support/mutations.py --seed 1 --count 20`` prints what it would change, one unified diff
each. With ``-- COMMAND`` it makes each change in turn, runs the command, which fails if tests find the
fault, and takes it back; a line of JSON tells what came of each.

A fault is a comparison turned round, a call that is a statement dropped, or the first two arguments
of a call swapped.
"""

import argparse
import ast
import difflib
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from commands import ran

ROOT = Path(__file__).parents[2]
SOURCES = (
    "fiber_core/src/fiber/_tasks",
    "fiber_core/src/fiber/_objects",
    "fiber_core/src/fiber/_agent",
    "plugins/fiber_docker/src",
    "plugins/fiber_k8s/src",
    "plugins/fiber_local/src",
    "plugins/fiber_slurm/src",
    "plugins/fiber_ssh/src",
)
_TURNED = {
    ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
#: calls whose absence nobody is to notice
_SILENT = ("log.", "logging.", "warnings.", "print")
#: functions to which the order of their arguments is nothing
_SYMMETRIC = ("max", "min")


class Mutation(NamedTuple):
    """One fault: a part of a file and what takes its place."""

    path: Path
    start: int
    end: int
    text: str

    def changed(self) -> str:
        """The file's text with the fault in it."""
        source = self.path.read_bytes()
        return (source[: self.start] + self.text.encode() + source[self.end :]).decode()

    def diff(self) -> str:
        """The fault as a unified diff."""
        name = str(self.path.relative_to(ROOT))
        before = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        after = self.changed().splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, name, name, n=1))


def mutations(seed: int) -> Iterator[Mutation]:
    """All faults, in an order that the seed gives; each package has its share."""
    rng = random.Random(seed)
    queues = []
    for folder in SOURCES:
        found = [one for path in sorted((ROOT / folder).rglob("*.py")) for one in _of(path)]
        rng.shuffle(found)
        queues.append(found)
    while any(queues):
        for queue in queues:
            if queue:
                yield queue.pop()


def _of(path: Path) -> Iterator[Mutation]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: ast.expr) -> str:
        begin, end = span(node)
        return source[begin:end].decode()

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            turned = _TURNED[type(node.ops[0])]
            yield Mutation(path, *span(node), f"({text(left)}) {turned} ({text(right)})")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if not text(node.value).startswith(_SILENT):
                yield Mutation(path, *span(node), "pass")
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            if text(node.func) in _SYMMETRIC:
                continue
            first, second = node.args[:2]
            if not any(isinstance(each, ast.Starred) for each in (first, second)):
                begin, end = span(first)[0], span(second)[1]
                yield Mutation(path, begin, end, f"{text(second)}, {text(first)}")


def attempt(mutation: Mutation, command: Sequence[str]) -> dict[str, object]:
    """Run a command with the fault in place; what came of it."""
    before = mutation.path.read_bytes()
    diff, changed = mutation.diff(), mutation.changed()
    began = time.monotonic()
    try:
        mutation.path.write_text(changed, encoding="utf-8")
        done = ran(command, cwd=ROOT)
    finally:
        mutation.path.write_bytes(before)
    return {
        "diff": diff,
        "caught": done.returncode != 0,
        "seconds": round(time.monotonic() - began, 1),
        "last": done.stdout.strip().splitlines()[-3:],
    }


def main(arguments: Sequence[str]) -> None:
    """Show faults, or try them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("command", nargs="*", help="what finds a fault, by failing")
    options = parser.parse_args(arguments)
    for mutation in itertools.islice(mutations(options.seed), options.count):
        if options.command:
            print(json.dumps(attempt(mutation, options.command)), flush=True)
        else:
            print(mutation.diff())


if __name__ == "__main__":
    main(sys.argv[1:])
