"""Where the source is, and what its modules import."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CORE = ROOT / "fiber_core" / "src"
SOURCES = [CORE, *sorted(ROOT.glob("plugins/*/src"))]


class Import(NamedTuple):
    """One module that another one imports."""

    importer: str
    imported: str
    line: int
    file: str
    #: True for imports that run when the importer is imported, False inside functions
    at_load: bool


def modules(*sources: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module."""
    for source in sources:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def module_of(name: str, modules: Collection[str]) -> str | None:
    """The module that a dotted name is or is in; None where it is none of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def imports(name: str, path: Path, *, types: bool = False) -> Iterator[Import]:
    """Every import of a module, with ``types`` those for type checkers, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    yield from _Imports(name, package, str(path), types=types).of(tree, at_load=True)


class _Imports:
    def __init__(self, name: str, package: str, file: str, *, types: bool) -> None:
        self._name = name
        self._package = package.split(".")
        self._file = file
        self._types = types

    def of(self, node: ast.AST, *, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.If)
                and "TYPE_CHECKING" in ast.dump(child.test)
                and not self._types
            ):
                for other in child.orelse:
                    yield from self.of(other, at_load=at_load)
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(self._name, alias.name, child.lineno, self._file, at_load)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = self._package[: len(self._package) - child.level + 1]
                    base = ".".join([*above, base] if base else above)
                # `from package import name` imports a submodule where there is one of that name
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    yield Import(self._name, whole, child.lineno, self._file, at_load)
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from self.of(child, at_load=at_load and not inside)
