"""Text that ``help()`` and ``pydoc`` show for classes of values: each field's type, default and meaning.

Sources say what a field is in a comment before it, ``#: seconds to wait``, which costs nothing when the
class is made, but is in no docstring. So a class's ``__doc__`` and ``__signature__`` are
descriptors that read the source once somebody asks.

Called by :mod:`~fiber._base.light_values` for its classes, by enumerations of :mod:`fiber.model`, and
by the generator of the reference.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

__all__ = ["Documentation", "DocumentedEnum", "Signature", "fields_of"]


def _comments(cls: type) -> dict[str, str]:
    """Return the ``#:`` comment before each name that a class's body assigns or annotates.

    A name on the line below another one shares its comment, where it has none of its own. Names of the class's bases are among them; empty where the source is not there.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        found.update(_comments_in_body(base))
    return found


def _comments_in_body(cls: type) -> dict[str, str]:
    import ast
    import inspect
    import textwrap

    try:
        lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
        (node,) = ast.parse("\n".join(lines)).body
    except (OSError, TypeError, SyntaxError, ValueError):
        # made without a file, or its source is not installed
        return {}
    if not isinstance(node, ast.ClassDef):
        return {}
    found = {}
    above = (0, "")
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            name = ast.unparse(statement.targets[0])
        else:
            continue
        text: list[str] = []
        for line in reversed(lines[: statement.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            text.insert(0, line.strip()[2:].strip())
        # a comment may be about the two fields below it
        shared = above[1] if above[0] == statement.lineno - 1 else ""
        found[name] = " ".join(text) or shared
        above = (statement.end_lineno or 0, found[name])
    return found


def fields_of(cls: Any) -> list[tuple[str, str, str, str]]:
    """Return name, type, default ("" where there is none) and meaning of each field or member."""
    meanings = _comments(cls)
    if issubclass(cls, enum.Enum):
        return [(one.name, "", repr(one.value), meanings.get(one.name, "")) for one in cls]
    return [
        (
            each.name,
            each.type,
            "" if each.is_required else _shown_default(each),
            meanings.get(each.name, ""),
        )
        for each in cls._fields_
    ]


def _shown_default(each: Any) -> str:
    if isinstance(each.factory, type):
        return f"{each.factory.__name__}()"
    return repr(each.factory() if each.factory is not None else each.default)


class Documentation:
    """Descriptor for ``__doc__`` of a class: its docstring, and a line or more for each field.

    Args:
        text: the docstring; None where there is none.
        title: what the fields are called.
    """

    def __init__(self, text: str | None, title: str) -> None:
        self._text = text
        self._title = title
        self._whole: dict[type, str] = {}

    def __get__(self, _: object, cls: type) -> str:
        if cls not in self._whole:
            self._whole[cls] = self._made(cls)
        return self._whole[cls]

    def _made(self, cls: type) -> str:
        import inspect
        import textwrap

        # something before the fields, or their indentation would be taken for the text's own
        parts = [inspect.cleandoc(self._text or cls.__name__)]
        lines = [f"{self._title}:"]
        for name, kind, default, meaning in fields_of(cls):
            head = ": ".join(filter(None, (name, kind)))
            lines.append(f"    {head} = {default}" if default else f"    {head}")
            indent = " " * 8
            lines += textwrap.wrap(
                meaning, 88, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
        if len(lines) > 1:
            parts.append("\n".join(lines))
        return "\n\n".join(parts)


class DocumentedEnum(enum.EnumMeta):
    """Metaclass of enumerations whose ``__doc__`` has a line or more for each member."""

    # a descriptor in the class itself does not do: help() finds the docstring of EnumMeta first
    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        return Documentation(vars(cls).get("__doc__"), "Members").__get__(None, cls)


class Signature:
    """Descriptor for ``__signature__`` of a class of values, with types as they are written.

    Args:
        make_init: makes the class's ``__init__``.
    """

    def __init__(self, make_init: Callable[[], Any]) -> None:
        self._make_init = make_init

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        owner = next(one for one in cls.__mro__ if "__signature__" in one.__dict__)
        has_init = next(one for one in cls.__mro__ if "__init__" in one.__dict__)
        if instance is not None or has_init is not owner:
            # values have none, and a subclass may have an __init__ of its own
            msg = f"{cls.__name__} has no signature of its own"
            raise AttributeError(msg)
        import inspect

        made = [
            inspect.Parameter(
                each.alias,
                inspect.Parameter.KEYWORD_ONLY
                if each.kw_only
                else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty
                if each.is_required
                else _Written(_shown_default(each)),
                annotation=_Written(each.type),
            )
            for each in sorted(cls._fields_, key=lambda each: each.kw_only)
        ]
        # in place of the one that waits for the first instance and takes anything
        owner.__init__ = init = self._make_init()
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        init.__signature__ = inspect.Signature([itself, *made])
        return inspect.Signature(made)


class _Written:
    """Text that is shown without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
