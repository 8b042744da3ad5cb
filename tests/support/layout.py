"""Where the source is, and what its modules import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
CORE = ROOT / "fiber_core" / "src"
SOURCES = [CORE, *sorted(ROOT.glob("plugins/*/src"))]


@attrs.frozen
class Import:
    """One module that another one imports."""

    importer: str
    imported: str
    line: int
    #: True for imports that run when the importer is imported, False inside functions
    at_load: bool


def modules(*sources: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module."""
    for source in sources:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(name: str, path: Path) -> Iterator[Import]:
    """Every import of a module, save those for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    yield from _walk(tree, name, package, at_load=True)


def _walk(node: ast.AST, name: str, package: str, *, at_load: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield from _walk(other, name, package, at_load=at_load)
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(name, alias.name, child.lineno, at_load)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from package import name` imports a submodule where there is one of that name
            for alias in child.names:
                yield Import(name, f"{base}.{alias.name}", child.lineno, at_load)
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _walk(child, name, package, at_load=at_load and not inside)
