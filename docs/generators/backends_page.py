"""The page that compares backends, made of the kit's results; run it to write the page anew.

Results of a backend are a file of ``docs/reference/conformance``, written by
``pytest -p fiber.testing.report --fiber-kit-json=FILE plugins/…/tests/test_conformance.py``.

python docs/generators/backends_page.py > docs/reference/backends.md
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from fiber.model import Capabilities
from fiber.testing.kit import LEVELS

REFERENCE = Path(__file__).parents[1] / "reference"
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
    "detached": "`fiber run` without `-a`",
    "fork": "several processes in one job",
    "suspend": "stopped jobs are recognised",
    "same_host": "jobs see this machine's files",
    "streams": "jobs that cannot connect are reached by streams",
    "drain": "workers that lose their place hand over their work",
}
_TOP = """\
# Backends

This page shows what each backend can do, and the results of the [conformance kit](testing.md). If a backend cannot do what is
asked for, Fiber says so and starts nothing. `fiber plugins` shows the same for the installed backends, and
`fiber plugin check NAME` runs the kit on one of them. `k8s` is a cluster that the tests emulate; `k8s-live` is a real API server,
scheduler and kubelet of Kubernetes 1.20, [seen from outside](../design/emulated-cluster.md#on-a-real-cluster).
"""
_KIT = """\
## The kit

The number of passed tests and, in brackets, of tests that do not apply because the backend does not declare what they need.
"""
#: what is measured in each part of the table; the last part has what no other one names
PARTS: dict[str, tuple[str, ...]] = {
    "Detection": (
        "seconds until a killed job is told",
        "seconds from submission to a told death",
        "seconds until an end that nobody confirms is told",
        "seconds until a task that closed descriptors is given up",
        "seconds until events go on",
    ),
    "Recovery": (
        "seconds from a worker's death to its task's result",
        "seconds from a worker's death to its successor's first result",
        "seconds until others have done a leaving worker's work",
        "seconds from a platform's return to all work done",
    ),
    "Clean-up": ("seconds until nothing is left of a dead master", "seconds to clean up"),
    "Scale": (),
}
_TIMES = """\
## Measured

Times are in seconds, unless a line says otherwise. They were measured in one run on a small, busy machine: they show the order of
magnitude and are no promise.
"""


@attrs.frozen
class Subject:
    """A backend's results; those of a run on a real engine have a name of their own."""

    name: str
    backend: str
    capabilities: frozenset[str]
    tests: tuple[dict[str, Any], ...]

    def count(self, level: int, *outcomes: str) -> int:
        """Tests of a level with one of these outcomes."""
        return sum(test["level"] == level and test["outcome"] in outcomes for test in self.tests)

    def measured(self) -> dict[str, float]:
        """The worst of what was measured, by its words."""
        found: dict[str, float] = {}
        for test in self.tests:
            for what, number in test.get("measured", {}).items():
                found[what] = max(number, found.get(what, number))
        return found


def subjects() -> list[Subject]:
    """The backends that there are results of."""
    return [
        subject
        for path in sorted(RESULTS.glob("*.json"), key=lambda path: path.stem)
        for subject in _read(path)
    ]


def _read(path: Path) -> Iterator[Subject]:
    found = json.loads(path.read_text(encoding="utf-8"))["subjects"]
    of_plugins = [test for one in found if one["kit"] == "plugin" for test in one["tests"]]
    backends = [one for one in found if one["kit"] == "backend"]
    # some of the kit may have run on a backend a second time, with other settings
    for name in dict.fromkeys(one["name"] for one in backends):
        same = [one for one in backends if one["name"] == name]
        tests = [test for one in same for test in one["tests"]]
        shown = path.stem if path.stem.startswith(f"{name}-") else name
        yield Subject(shown, name, frozenset(same[0]["capabilities"]), (*tests, *of_plugins))


def render(found: Sequence[Subject]) -> str:
    """The page."""
    return "\n".join(
        [
            _TOP,
            _table(
                found,
                "",
                {
                    words: ["yes" if name in subject.capabilities else "" for subject in found]
                    for name, words in WORDS.items()
                },
            ),
            _KIT,
            _table(
                found,
                "level",
                {
                    f"{level}: {about}": [
                        f"{one.count(level, 'passed')} ({one.count(level, 'skipped', 'xfailed')})"
                        for one in found
                    ]
                    for level, about in LEVELS.items()
                },
            ),
            _TIMES,
            *(
                f"### {part}\n\n{_table(found, '', rows)}"
                for part, rows in _measured_rows(found).items()
                if rows
            ),
        ]
    )


def _measured_rows(found: Sequence[Subject]) -> dict[str, dict[str, list[str]]]:
    """Rows of each part of what was measured."""
    all_words = {words for subject in found for words in subject.measured()}
    other = sorted(all_words - {words for part in PARTS.values() for words in part})
    *_, last = PARTS
    return {
        part: {
            words: [
                "" if (value := one.measured().get(words)) is None else f"{value:.3g}"
                for one in found
            ]
            for words in (*named, *(other if part == last else ()))
            if words in all_words
        }
        for part, named in PARTS.items()
    }


def _table(found: Sequence[Subject], corner: str, rows: Mapping[str, Sequence[str]]) -> str:
    header = [corner, *(f"`{subject.name}`" for subject in found)]
    lines = [header, ["---"] * len(header), *([name, *cells] for name, cells in rows.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def missing_words() -> set[str]:
    """Capabilities that the page has no words for."""
    return set(Capabilities.__annotations__) - set(WORDS)


if __name__ == "__main__":
    print(render(subjects()), end="")
