"""Where the source is, and what its modules import."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
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
    package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")

    def imported(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if not isinstance(node, ast.ImportFrom):
            return []
        base = node.module or ""
        if node.level:
            above = package[: len(package) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        # `from package import name` imports a submodule where there is one of that name
        return [f"{base}.{alias.name}" for alias in node.names]

    def within(node: ast.AST) -> Iterator[Import]:
        children: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types:
            children = node.orelse
        for child in children:
            for whole in imported(child):
                yield Import(name, whole, getattr(child, "lineno", 0))
            yield from within(child)

    return within(ast.parse(path.read_text(encoding="utf-8"), str(path)))
