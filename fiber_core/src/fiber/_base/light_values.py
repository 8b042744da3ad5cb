"""Value classes with attrs' interface that are cheap to make, without importing attrs.

A program's first result waits for every class that it imports, and an attrs class takes up to a
millisecond to make, attrs itself another forty classes. Here a class shares its methods with all
others, and only its ``__init__`` is generated, at the first instance. Code that uses attrs works on
these classes: ``attrs.fields``, ``attrs.evolve`` and ``attrs.asdict``.

Annotations must be text, so a module needs ``from __future__ import annotations``; methods of a
class must not use ``super()`` without arguments.

``help()`` and ``pydoc`` show each field's type, default and meaning. Sources say what a field is in a
comment before it, ``#: seconds to wait``, which costs nothing when the class is made, but is in no
docstring. So a class's ``__doc__`` and ``__signature__`` are descriptors that read the source once
somebody asks; enumerations of :mod:`fiber.model`, and the generator of the reference, use them too.

Apart from :mod:`~fiber._base.values`, which is what declarations import, so that type checkers see
attrs.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import inspect

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda decorator: decorator


__all__ = [
    "NOTHING",
    "DocumentedEnum",
    "Field",
    "and_",
    "asdict",
    "define",
    "evolve",
    "field",
    "fields",
    "fields_of",
    "frozen",
    "ge",
    "gt",
    "has",
    "le",
    "optional",
    "plain",
]

T = TypeVar("T")
Validator = Callable[[Any, Any, Any], None]
#: default of a field without a default
NOTHING: Any = type("NOTHING", (), {"__repr__": lambda _: "NOTHING", "__slots__": ()})()
_NO_METADATA: Mapping[Any, Any] = {}
_set = object.__setattr__


class Field:
    """Description of one field; the attributes' names are those of ``attrs.Attribute``."""

    __slots__ = (
        "converter",
        "default",
        "eq",
        "factory",
        "hash",
        "kw_only",
        "metadata",
        "name",
        "repr",
        "type",
        "validator",
    )

    def __init__(self, default: Any = NOTHING, factory: Callable[[], Any] | None = None) -> None:
        self.name = ""
        #: the annotation as it is written
        self.type = ""
        self.default = default
        self.factory = factory
        self.converter: Callable[[Any], Any] | None = None
        self.validator: Validator | None = None
        self.repr = self.eq = True
        self.hash: bool | None = None
        self.kw_only = False
        self.metadata = _NO_METADATA

    @property
    def alias(self) -> str:
        """Name of the argument of ``__init__``."""
        return self.name.lstrip("_")

    @property
    def is_required(self) -> bool:
        """True where the field has no default."""
        return self.default is NOTHING and self.factory is None


def field(
    *,
    default: Any = NOTHING,
    factory: Callable[[], Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    validator: Validator | None = None,
    repr: bool = True,  # noqa: A002 - attrs' names
    eq: bool = True,
    hash: bool | None = None,  # noqa: A002
    kw_only: bool = False,
    metadata: Mapping[Any, Any] = _NO_METADATA,
) -> Any:
    """Declare a field with more than a name and a default; arguments as for ``attrs.field``."""
    made = Field(default, factory)
    made.converter, made.validator, made.metadata = converter, validator, metadata
    made.repr, made.eq, made.hash, made.kw_only = repr, eq, hash, kw_only
    return made


def frozen(cls: Any = None, *, kw_only: bool = False, eq: bool = True) -> Any:
    """Make a class of immutable values, as ``attrs.frozen`` does."""
    if cls is None:
        return lambda cls: _build(cls, kw_only=kw_only, eq=eq, is_frozen=True)
    return _build(cls, kw_only=kw_only, eq=eq, is_frozen=True)


def define(cls: Any = None, *, kw_only: bool = False, eq: bool = True) -> Any:
    """Make a class of mutable records, as ``attrs.define`` does."""
    if cls is None:
        return lambda cls: _build(cls, kw_only=kw_only, eq=eq, is_frozen=False)
    return _build(cls, kw_only=kw_only, eq=eq, is_frozen=False)


def has(cls: type) -> bool:
    """True for a class made by :func:`define` or :func:`frozen`."""
    return "_fields_" in vars(cls)


def fields(cls: type) -> tuple[Field, ...]:
    """Return the fields of such a class, in order."""
    return cast("tuple[Field, ...]", cls._fields_)  # type: ignore[attr-defined]


def evolve(value: T, **changes: Any) -> T:
    """Return a copy of a value with some fields changed."""
    for each in fields(type(value)):
        alias = each.alias
        if alias not in changes:
            changes[alias] = getattr(value, each.name)
    return type(value)(**changes)


def asdict(value: Any) -> dict[str, Any]:
    """Return the fields' values by name; not recursive."""
    return {each.name: getattr(value, each.name) for each in fields(type(value))}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: values of these classes as objects, members of enumerations as theirs."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    return plain(asdict(value)) if has(type(value)) else value


def ge(least: float) -> Validator:
    """Validator: raises ValueError for values less than a bound."""

    def check(_: Any, attribute: Any, value: Any) -> None:
        if not value >= least:
            msg = f"{attribute.name!r} must be >= {least}: {value!r}"
            raise ValueError(msg)

    return check


def gt(bound: float) -> Validator:
    """Validator: raises ValueError for values not greater than a bound."""

    def check(_: Any, attribute: Any, value: Any) -> None:
        if not value > bound:
            msg = f"{attribute.name!r} must be > {bound}: {value!r}"
            raise ValueError(msg)

    return check


def le(most: float) -> Validator:
    """Validator: raises ValueError for values greater than a bound."""

    def check(_: Any, attribute: Any, value: Any) -> None:
        if not value <= most:
            msg = f"{attribute.name!r} must be <= {most}: {value!r}"
            raise ValueError(msg)

    return check


def and_(*validators: Validator) -> Validator:
    """Validator: applies several validators in turn."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        for validator in validators:
            validator(instance, attribute, value)

    return check


def optional(validator: Validator) -> Validator:
    """Validator: applies another one to values other than None."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if value is not None:
            validator(instance, attribute, value)

    return check


# -- making a class ---------------------------------------------------------------------------------


def _build(cls: type, *, kw_only: bool, eq: bool, is_frozen: bool) -> type:
    space = dict(vars(cls))
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    inherited = next((fields(base) for base in cls.__mro__[1:] if has(base)), ())
    own = []
    for name, annotation in cls.__annotations__.items():
        if annotation.startswith("ClassVar"):
            continue
        given = space.pop(name, NOTHING)
        made = given if isinstance(given, Field) else Field(given)
        made.name = name
        made.type = annotation
        made.kw_only = made.kw_only or kw_only
        own.append(made)
    every = (*inherited, *own)
    room = () if any(hasattr(base, "__weakref__") for base in cls.__bases__) else ("__weakref__",)
    space["__slots__"] = (*(each.name for each in own), *room)
    space["_fields_"] = every
    space["__match_args__"] = tuple(each.name for each in every if not each.kw_only)
    space["__attrs_attrs__"] = _Attributes()
    space["__doc__"] = _Documentation(space.get("__doc__"), "Fields")
    for name, method in _METHODS.items():
        space.setdefault(name, method)
    if eq:
        space["_key_"] = _getter([each.name for each in every if each.eq])
        hashed = [f.name for f in every if (f.eq if f.hash is None else f.hash)]
        space["_hash_key_"] = _getter(hashed)
        space.setdefault("__eq__", _eq)
        # as in attrs: a class that compares by value and is mutable has no hash
        space["__hash__"] = space.get("__hash__") or (_hash if is_frozen else None)
    if is_frozen:
        space["__setattr__"] = _raise_frozen_on_set
        space["__delattr__"] = _raise_frozen_on_delete
    made_class = type(cls)(cls.__name__, cls.__bases__, space)
    if "__init__" not in space:
        made_class.__init__ = _first_init(made_class, is_frozen)  # type: ignore[misc]
        made_class.__signature__ = _Signature(functools.partial(_make_init, made_class, is_frozen))  # type: ignore[attr-defined]
    return made_class


def _getter(names: list[str]) -> Callable[[Any], Any]:
    return operator.attrgetter(*names) if names else staticmethod(lambda _: ())


#: instances of a class that are made before its ``__init__`` is compiled, which takes as long as
#: twenty of them, and the first in a process, for which CPython makes 119 classes of syntax trees, as
#: long as a hundred and fifty: few classes of a process that starts have more
_FIRST = 32


def _first_init(cls: Any, is_frozen: bool) -> Any:
    left = _FIRST

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        nonlocal left
        left -= 1
        if left < 0 or not _fill(cls, self, args, kwargs, is_frozen=is_frozen):
            made = cls.__init__ = _make_init(cls, is_frozen)
            made(self, *args, **kwargs)

    return __init__


def _fill(
    cls: type, instance: Any, args: tuple[Any, ...], given: dict[str, Any], *, is_frozen: bool
) -> bool:
    """Do what the compiled ``__init__`` does; False, and nothing is done, where that raises TypeError."""
    every = fields(cls)
    names = [each.alias for each in every if not each.kw_only]
    if len(args) > len(names) or not given.keys().isdisjoint(names[: len(args)]):
        return False
    given = {**dict(zip(names, args)), **given}  # noqa: B905 - the rest is given by name, or is not
    if not given.keys() <= {each.alias for each in every} or any(
        each.alias not in given and each.factory is None and each.default is NOTHING
        for each in every
    ):
        return False
    put = _set if is_frozen else setattr
    for each in every:
        value = given.get(each.alias, NOTHING)
        if value is NOTHING:
            value = each.default if each.factory is None else each.factory()
        put(instance, each.name, value if each.converter is None else each.converter(value))
    for each in every:
        if each.validator is not None:
            each.validator(instance, each, getattr(instance, each.name))
    if hasattr(cls, "__attrs_post_init__"):
        instance.__attrs_post_init__()
    return True


def _make_init(cls: Any, is_frozen: bool) -> Any:
    """Generate ``__init__`` as one would write it by hand."""
    scope: dict[str, Any] = {"_set": _set, "_nothing": NOTHING}
    positional, keywords, checks = ["self"], list[str](), list[str]()
    body: list[str] = []
    for number, each in enumerate(fields(cls)):
        argument = value = each.alias
        parameter = argument
        if each.factory is not None:
            parameter += "=_nothing"
            scope[f"_factory{number}"] = each.factory
            body.append(f"if {argument} is _nothing: {argument} = _factory{number}()")
        elif each.default is not NOTHING:
            scope[f"_default{number}"] = each.default
            parameter += f"=_default{number}"
        (keywords if each.kw_only else positional).append(parameter)
        if each.converter is not None:
            scope[f"_converter{number}"] = each.converter
            value = f"_converter{number}({value})"
        body.append(
            f"_set(self, {each.name!r}, {value})" if is_frozen else f"self.{each.name} = {value}"
        )
        if each.validator is not None:
            scope[f"_validator{number}"], scope[f"_field{number}"] = each.validator, each
            checks.append(f"_validator{number}(self, _field{number}, self.{each.name})")
    if hasattr(cls, "__attrs_post_init__"):
        checks.append("self.__attrs_post_init__()")
    star = ["*"] if keywords else []
    lines = [f"def __init__({', '.join([*positional, *star, *keywords])}):"]
    lines += [f"    {line}" for line in (*body, *checks)] or ["    pass"]
    # compiled first: after exec() of a string CPython forgets that a KeyboardInterrupt ended the
    # program, and exits with 1 rather than by SIGINT
    code = compile("\n".join(lines), f"<__init__ of {cls.__qualname__}>", "exec")
    exec(code, scope)  # noqa: S102 - the names are those of the class
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


class _Attributes:
    """Descriptor for ``__attrs_attrs__``: makes attrs' own description on first access."""

    def __get__(self, _: object, cls: Any) -> Any:
        import attrs

        def given(each: Field) -> Any:
            default = each.default if each.default is not NOTHING else attrs.NOTHING
            if each.factory is not None:
                default = attrs.Factory(each.factory)
            return attrs.field(default=default, kw_only=True, metadata=dict(each.metadata))

        twin = attrs.make_class(cls.__name__, {each.name: given(each) for each in fields(cls)})
        cls.__attrs_attrs__ = twin.__attrs_attrs__  # type: ignore[attr-defined]
        return cls.__attrs_attrs__


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._key_(self) == self._key_(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, self._hash_key_(self)))


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(type(self)) if f.repr)
    return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({', '.join(shown)})"


def _get_state(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, each.name) for each in fields(type(self)))


def _set_state(self: Any, state: tuple[Any, ...]) -> None:
    for each, value in zip(fields(type(self)), state, strict=True):
        _set(self, each.name, value)


def _raise_frozen_on_set(self: Any, name: str, _: Any) -> None:
    raise _frozen_error(self, name)


def _raise_frozen_on_delete(self: Any, name: str) -> None:
    raise _frozen_error(self, name)


def _frozen_error(value: object, name: str) -> AttributeError:
    # attrs' own class, which takes no message, where attrs is imported and may be caught
    known = sys.modules.get("attr.exceptions")
    if known is not None:
        error: AttributeError = known.FrozenInstanceError()
        return error
    return AttributeError(
        f"{name!r} of a {type(value).__name__} never changes; evolve() makes another"
    )


_METHODS = {
    "__repr__": _repr,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
    "__replace__": evolve,
}


# -- what help() shows --------------------------------------------------------------------------------


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


class _Documentation:
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
        return _Documentation(vars(cls).get("__doc__"), "Members").__get__(None, cls)


class _Signature:
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
