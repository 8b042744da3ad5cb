"""Makes the folder of a new plugin from templates, with the conformance kit wired in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from fiber._version import __version__
from fiber.exceptions import FiberError

__all__ = ["NewPlugin", "create"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_WORD = re.compile(r"{{(\w+)}}")
_SUFFIX = ".tmpl"
_TEMPLATES = Path(__file__).with_name("templates")


def _check_name(_: object, __: object, value: str) -> None:
    if not _NAME.fullmatch(value):
        msg = f"{value!r} is no name for a plugin: write small letters, digits and hyphens"
        raise FiberError(msg)


@attrs.frozen
class NewPlugin:
    """A plugin that is to be made.

    Raises:
        FiberError: its name or its kind will not do.
    """

    #: name of the backend, or of the entry point
    name: str = attrs.field(validator=_check_name)
    #: kind of the devices; None for a backend
    kind: str | None = None

    def __attrs_post_init__(self) -> None:
        kind = self.kind
        if kind is not None and not (kind.isidentifier() and kind == kind.lower()):
            msg = f"{kind!r} is no kind of devices: write a word as in @fiber.meta(gpu=1)"
            raise FiberError(msg)

    @property
    def distribution(self) -> str:
        """What ``pip install`` is told."""
        return f"fiber-{self.name}"

    @property
    def words(self) -> Mapping[str, str]:
        """What stands for the placeholders of the templates."""
        kind = self.kind or self.name
        return {
            "name": self.name,
            "kind": kind,
            "upper": kind.upper(),
            "distribution": self.distribution,
            "module": self.distribution.replace("-", "_"),
            "class": "".join(part.capitalize() for part in self.name.split("-")),
            "version": __version__,
        }


def create(plugin: NewPlugin, folder: Path) -> list[Path]:
    """Write the files of a new plugin; the paths that were written.

    Args:
        plugin: the plugin.
        folder: where; it must not be there, or be empty.

    Raises:
        FiberError: there is something in the folder, or it cannot be written.
    """
    template = "backend" if plugin.kind is None else "resource"
    root = _TEMPLATES / template
    try:
        if folder.exists() and any(folder.iterdir()):
            msg = f"{folder} is there already and not empty; name another one with --directory"
            raise FiberError(msg)
        written = []
        for source in sorted(root.rglob(f"*{_SUFFIX}")):
            relative = str(source.relative_to(root)).removesuffix(_SUFFIX)
            path = folder / relative.replace("__module__", plugin.words["module"])
            path.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text("utf-8")
            path.write_text(_WORD.sub(lambda found: plugin.words[found[1]], text), "utf-8")
            written.append(path)
    except OSError as error:
        msg = f"{folder} cannot be written: {error.strerror}"
        raise FiberError(msg) from error
    return written
