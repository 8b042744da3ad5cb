"""The page that compares backends, made of the kit's results; run it to write the page anew.

Results of a backend are a file of ``docs/reference/conformance``, written by
``pytest -p fiber.testing.report --fiber-kit-json=FILE plugins/…/tests/test_conformance.py``.

python tests/support/backends_page.py > docs/reference/backends.md
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from fiber.model import Capabilities
from fiber.testing.levels import LEVELS

__all__ = ["PAGE", "RESULTS", "Subject", "render", "subjects"]

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
RESULTS = REFERENCE / "conformance"
PAGE = REFERENCE / "backends.md"

#: what users know a capability by; in the order of the page
WORDS = {
    "logs": "`fiber logs`",
    "follow_logs": "`fiber logs -f`",
    "output": "output of processes on the terminal",
    "exec": "`fiber exec`",
    "copy": "`fiber cp`",
    "images": "images (`--image`, a Dockerfile)",
    "volumes": "volumes (`-v`)",
    "cpu_limit": "`cpu` is enforced",
    "memory_limit": "`memory` is enforced",
    "devices": "devices (`gpu` and others)",
    "groups": "groups of all or none",
    "detached": "`fiber run` without `-a`",
    "fork": "several processes a job",
    "suspend": "stopped jobs are told apart",
    "same_host": "jobs see this machine's files",
    "streams": "jobs that cannot dial are reached by streams",
    "drain": "workers that have to go hand over their work",
}
_TOP = """\
# Backends

What each backend can do, and what the [conformance kit](testing.md) found when it was run on it. What a backend does not
do is refused with a sentence before anything is started; `fiber plugins` has the same for what is installed, and
`fiber plugin check NAME` runs the kit there.
"""
_KIT = """\
## The kit

Tests passed, and tests that do not apply because the backend does not declare what they need.
"""
_TIMES = """\
## Measured

In seconds, unless a line says otherwise, in one run on a small machine that did other work besides: they tell the order of
magnitude and promise nothing.
"""


@attrs.frozen
class Subject:
    """A backend's results."""

    name: str
    capabilities: frozenset[str]
    python: str
    fiber: str
    tests: tuple[dict[str, Any], ...]

    def count(self, level: int, *outcomes: str) -> int:
        """Tests of a level with one of these outcomes."""
        counts = Counter(test["outcome"] for test in self.tests if test["level"] == level)
        return sum(counts[outcome] for outcome in outcomes)

    def measured(self) -> dict[str, float]:
        """The worst of what was measured, by its words."""
        found: dict[str, float] = {}
        for test in self.tests:
            for what, number in test.get("measured", {}).items():
                found[what] = max(number, found.get(what, number))
        return found


def subjects() -> list[Subject]:
    """The backends that there are results of."""
    return [subject for path in sorted(RESULTS.glob("*.json")) for subject in _read(path)]


def _read(path: Path) -> Iterator[Subject]:
    results = json.loads(path.read_text(encoding="utf-8"))
    plugins = [subject for subject in results["subjects"] if subject["kit"] == "plugin"]
    for subject in results["subjects"]:
        if subject["kit"] == "backend":
            tests = [*subject["tests"], *(test for plugin in plugins for test in plugin["tests"])]
            yield Subject(
                subject["name"],
                frozenset(subject["capabilities"]),
                results["python"],
                results["fiber"],
                tuple(tests),
            )


def render(found: Sequence[Subject]) -> str:
    """The page."""
    names = [f"`{subject.name}`" for subject in found]
    can = [
        [words, *("yes" if name in subject.capabilities else "" for subject in found)]
        for name, words in WORDS.items()
    ]
    levels = [
        [
            f"{level}: {about}",
            *(
                f"{subject.count(level, 'passed')} ({subject.count(level, 'skipped', 'xfailed')})"
                for subject in found
            ),
        ]
        for level, about in LEVELS.items()
    ]
    what = sorted({words for subject in found for words in subject.measured()})
    times = [
        [words, *(_number(subject.measured().get(words)) for subject in found)] for words in what
    ]
    return "\n".join(
        [
            _TOP,
            _table(["", *names], can),
            _KIT,
            _table(["level", *names], levels),
            _TIMES,
            _table(["", *names], times),
        ]
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def missing_words() -> set[str]:
    """Capabilities that the page has no words for."""
    return set(Capabilities.__annotations__) - set(WORDS)


if __name__ == "__main__":
    print(render(subjects()), end="")
