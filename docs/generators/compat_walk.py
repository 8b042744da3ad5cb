"""Walks every public name of the running Python's ``multiprocessing`` and compares Fiber's to it."""

import importlib
import inspect
import logging
import types
from collections.abc import Iterator
from typing import Any

import attrs

#: the package, and those of its modules that programs import from
MODULES = (
    "",
    "pool",
    "queues",
    "managers",
    "connection",
    "synchronize",
    "shared_memory",
    "sharedctypes",
    "context",
    "process",
    "reduction",
    "util",
    "dummy",
    "dummy.connection",
)
# what a class has by its operators, where that is not what every object has
_OPERATORS = (
    "__bool__",
    "__call__",
    "__contains__",
    "__delitem__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__next__",
    "__setitem__",
)
_MISSING = object()
_EMPTY = inspect.Parameter.empty


@attrs.frozen
class Name:
    """A public name of the stdlib's."""

    module: str
    #: within the module; of a member, with its class in front
    path: str

    @property
    def key(self) -> str:
        """How tables name it."""
        return f"{self.module}.{self.path}" if self.module else self.path

    @property
    def owner(self) -> str:
        """The name of the class that it is a member of; empty where it is none."""
        return self.path.partition(".")[0] if "." in self.path else ""

    def find(self, package: str) -> Any:
        """What a package has under that name."""
        found = module_of(package, self.module)
        for part in self.path.split("."):
            found = _member(found, part)
        return found


@attrs.frozen
class Finding:
    """What comparing one name has shown."""

    name: Name
    #: same, missing, more (parameters, all optional), other (parameters), kind
    what: str
    theirs: str = ""
    ours: str = ""

    def __str__(self) -> str:
        return f"{self.name.key}: {self.what} {self.theirs} -> {self.ours}"


def module_of(package: str, module: str) -> Any:
    """A module of a package, or None."""
    try:
        return importlib.import_module(f"{package}.{module}" if module else package)
    except ModuleNotFoundError:
        return None


def names() -> Iterator[Name]:
    """Every public name, classes before their members."""
    for module in MODULES:
        home = module_of("multiprocessing", module)
        for name in sorted(dir(home)):
            thing = getattr(home, name)
            if name.startswith("_") or not _belongs(home, name, thing):
                continue
            yield Name(module, name)
            if inspect.isclass(thing) and not issubclass(thing, BaseException):
                for member in members(thing):
                    yield Name(module, f"{name}.{member}")


def members(cls: type) -> list[str]:
    """The public members of a class, with the operators that it has of its own."""
    own = [
        name
        for name in _OPERATORS
        if getattr(cls, name, None) is not getattr(object, name, None) and name in _all_of(cls)
    ]
    return sorted({*own, *(name for name in _all_of(cls) if not name.startswith("_"))})


def _all_of(cls: type) -> set[str]:
    # members that a C type gives a class are no promise of multiprocessing's
    ours = [
        base for base in cls.__mro__ if base.__module__.startswith(("multiprocessing", "fiber"))
    ]
    return {name for base in ours for name in vars(base)}


def _belongs(home: types.ModuleType, name: str, thing: Any) -> bool:
    """True for what a module offers, and not for what it has imported for itself."""
    if name in getattr(home, "__all__", ()):
        return True
    if isinstance(thing, types.ModuleType):
        return False
    if home.__name__ == "multiprocessing":
        return True
    origin = getattr(thing, "__module__", None)
    if origin is None or not isinstance(origin, str):
        return name.isupper() and getattr(logging, name, _MISSING) is not thing
    return origin in (home.__name__, "queue", "_queue") or (
        home.__name__ == "multiprocessing.dummy" and origin in ("threading", "_thread")
    )


def _member(thing: Any, name: str) -> Any:
    if thing is None or thing is _MISSING:
        return _MISSING
    if inspect.isclass(thing):
        found = inspect.getattr_static(thing, name, _MISSING)
        if isinstance(found, property) or found is _MISSING:
            return found
    return getattr(thing, name, _MISSING)


def compare(name: Name) -> Finding:
    """Compare one name."""
    theirs, ours = name.find("multiprocessing"), name.find("fiber")
    if ours is _MISSING:
        return Finding(name, "missing")
    if ours is theirs or not callable(theirs):
        kind = callable(theirs) == callable(ours)
        return Finding(name, "same" if kind or ours is theirs else "kind", str(type(theirs)))
    if not callable(ours):
        return Finding(name, "kind", "callable", str(type(ours)))
    wanted, had = _parameters(theirs, name), _parameters(ours, name)
    # an operator's parameters are given by position, by the interpreter
    if wanted is None or had is None or wanted == had or name.path.endswith("__"):
        return Finding(name, "same")
    what = "more" if _accepts(had, wanted) else "other"
    return Finding(name, what, _text(wanted), _text(had))


def _parameters(thing: Any, name: Name) -> list[inspect.Parameter] | None:
    try:
        found = list(inspect.signature(thing).parameters.values())
    except (ValueError, TypeError):
        # of C; it has none to compare
        return None
    if name.owner and found and found[0].name == "self":
        found = found[1:]
    # an empty mapping that nobody may change is the same as none
    return [
        one.replace(annotation=_EMPTY, default=None if one.default == {} else one.default)
        for one in found
    ]


def _accepts(had: list[inspect.Parameter], wanted: list[inspect.Parameter]) -> bool:
    """True where every call that fits what is wanted fits what we have, and means the same."""
    positional = [one for one in wanted if one.kind <= one.POSITIONAL_OR_KEYWORD]
    mine = [one for one in had if one.kind <= one.POSITIONAL_OR_KEYWORD]
    if not all(map(_fits, mine, positional)) or len(mine) < len(positional):
        return False
    by_name = {one.name: one for one in had}
    others = [one for one in wanted if one.kind > one.POSITIONAL_OR_KEYWORD]
    if not all(one.name in by_name and _fits(by_name[one.name], one) for one in others):
        return False
    known = {one.name for one in wanted}
    return all(one.name in known or _is_optional(one) for one in had)


def _fits(had: inspect.Parameter, wanted: inspect.Parameter) -> bool:
    same = had.name == wanted.name and had.kind == wanted.kind
    return same and (had.default == wanted.default or not _is_optional(wanted))


def _is_optional(one: inspect.Parameter) -> bool:
    """True where a call may leave it out."""
    return one.default is not _EMPTY or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)


def _text(parameters: list[inspect.Parameter]) -> str:
    return f"({', '.join(map(str, parameters))})"
