"""The page with the contract of backends in tables, made of the sources; run it to write it anew.

python docs/generators/contract_page.py > docs/reference/contract.md
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fiber.model
from fiber import hookspecs
from fiber._base.light_values import fields_of
from fiber.abc import Backend, ResourceProvider

PAGE = Path(__file__).parents[1] / "reference" / "contract.md"

#: values in the order in which an author meets them; others of ``fiber.model`` follow
FIRST = (
    "JobSpec",
    "ResourceRequest",
    "Volume",
    "Gang",
    "Job",
    "JobStatus",
    "JobState",
    "Reason",
    "ReasonKind",
    "ProcessStatus",
    "Capabilities",
    "Capacity",
    "Check",
    "Reach",
    "ReachKind",
    "BackendInfo",
    "BackendContext",
)
_HEAD = """\
# The contract in tables

<!-- written by docs/generators/contract_page.py -->

This page lists the values that a backend receives and returns, and what its methods promise, in the words of the sources.
`python -m pydoc fiber.model`, `fiber.abc` and `fiber.hookspecs` show the same for the installed version. [Writing a
backend](../guides/writing-a-backend.md) has the rules that backends often break. Types are written as Python's annotations.
"""


def page() -> str:
    """The whole page."""
    others = [name for name in fiber.model.__all__ if name not in FIRST]
    return "\n".join(
        [
            _HEAD,
            "## Values: `fiber.model`\n",
            *(_value(name) for name in (*FIRST, *others)),
            "## Methods: `fiber.abc`\n",
            *_methods(Backend),
            *_methods(ResourceProvider),
            "## Hooks: `fiber.hookspecs`\n",
            *_hooks(),
        ]
    )


def _value(name: str) -> str:
    cls: Any = getattr(fiber.model, name)
    text, _, _ = (inspect.getdoc(cls) or "").partition("\n\nFields:")
    text, _, _ = text.partition("\n\nMembers:")
    found = list(fields_of(cls))
    if not any(kind for _, kind, _, _ in found):
        header, rows = (
            ("member", "value", "meaning"),
            [(_code(member), _code(value), _cell(words)) for member, _, value, words in found],
        )
    else:
        header, rows = (
            ("field", "type", "default", "meaning"),
            [
                (_code(field), _code(kind), _code(default), _cell(words))
                for field, kind, default, words in found
            ],
        )
    lines = [header, ("---",) * len(header), *rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"### {name}\n\n{_text(text)}\n\n{table}"


def _methods(cls: type) -> Iterator[str]:
    yield f"### {cls.__name__}\n\n{_text(inspect.getdoc(cls) or '')}\n"
    for name, method in vars(cls).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        need = "has to be there" if getattr(method, "__isabstractmethod__", False) else "optional"
        yield f"#### {name}\n\n{_signature(name, method)}: {need}.\n\n{_described(method)}\n"


def _hooks() -> Iterator[str]:
    for name in hookspecs.__all__:
        hook = getattr(hookspecs, name)
        if inspect.isfunction(hook):
            yield f"### {name}\n\n{_signature(name, hook)}\n\n{_described(hook)}\n"


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    given = [one for one in signature.parameters.values() if one.name != "self"]
    return _inline(f"{name}{signature.replace(parameters=given)}".replace("'", ""))


def _described(function: Any) -> str:
    """A docstring; its sections of arguments and errors become lists."""
    lines = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if re.fullmatch(r"(Args|Raises|Returns):", line):
            lines.append(f"{line}\n")
        elif found := re.match(r"    (\w+): (.*)", line):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif line.startswith("    "):
            # the rest of an item, or a result, which has no name
            lines.append(
                f"  {line.strip()}" if lines[-1].startswith(("- ", "  ")) else line.strip()
            )
        else:
            lines.append(line)
    return _text("\n".join(lines))


def _text(text: str) -> str:
    """Markdown of a docstring's text."""
    text = re.sub(r":\w+(?::\w+)*:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return _text(text).replace("|", r"\|")


def _code(text: str) -> str:
    return _inline(text).replace("|", r"\|") if text else ""


def _inline(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(page())
