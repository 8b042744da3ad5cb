"""Names of container images, and the file in a folder that describes one; for backends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fiber._base import values
from fiber.exceptions import AmbiguousImageError

__all__ = ["Reference", "file_of", "repository_for"]

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(
    r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:(?P<sum>[0-9a-fA-F]{32,})"
)
#: most characters of host and repository together, as registries allow
_LONGEST = 255
#: most characters kept of a folder's name
_LONGEST_FOLDER = 63


@values.frozen(kw_only=True)
class Reference:
    """Name of an image, parsed: ``registry/repository:tag@digest``."""

    #: host and port of the registry; None where none is written and the engine has its own
    registry: str | None = None
    #: path within the registry
    repository: str
    #: tag, where one is written
    tag: str | None = None
    #: digest with its algorithm, where one is written
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a name as container engines do.

        The first part is a registry where it has a dot, a colon or a capital letter, or is
        ``localhost``.

        Raises:
            ValueError: it is no name of an image; the text says which part is wrong.
        """
        rest, at, digest = text.partition("@")
        if at and not _is_digest(digest):
            raise _wrong(text, f"{digest!r} is no digest; one is sha256: and 64 hexadecimal digits")
        head, slash, tail = rest.partition("/")
        registry: str | None = None
        if slash and (set(head) & set(".:[") or head == "localhost" or head != head.lower()):
            registry, rest = head, tail
            if not _HOST.fullmatch(registry):
                raise _wrong(text, f"{registry!r} is no host of a registry")
        path, slash, last = rest.rpartition("/")
        name, colon, tag = last.partition(":")
        repository = f"{path}{slash}{name}"
        if colon and not _TAG.fullmatch(tag):
            allowed = "at most 128 letters, digits, dots, dashes and underscores"
            raise _wrong(text, f"{tag!r} is no tag; one has {allowed}")
        if not _REPOSITORY.fullmatch(repository):
            raise _wrong(text, _why_not(repository))
        if len(registry or "") + len(repository) >= _LONGEST:
            raise _wrong(text, f"it is longer than {_LONGEST} characters")
        return cls(registry=registry, repository=repository, tag=tag or None, digest=digest or None)

    @property
    def name(self) -> str:
        """The name without tag and digest."""
        return self.repository if self.registry is None else f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        tag = "" if self.tag is None else f":{self.tag}"
        digest = "" if self.digest is None else f"@{self.digest}"
        return f"{self.name}{tag}{digest}"


def repository_for(folder: str | Path) -> str:
    """Return a valid last part of a repository's name for a folder of any name."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(folder).resolve().name.lower())
    return name[:_LONGEST_FOLDER].strip("-") or "image"


def file_of(context: str | Path, first: str, others: str) -> Path | None:
    """Find the file that describes the image of a folder; None where it has none.

    Args:
        context: the folder, or the file itself.
        first: name of the file that is preferred.
        others: pattern of other names, of which only one file may exist.

    Raises:
        AmbiguousImageError: there are several of the others.
    """
    path = Path(context).resolve()
    if path.is_file():
        return path
    if (path / first).is_file():
        return path / first
    found = sorted(one for one in path.glob(others) if one.is_file())
    if len(found) > 1:
        raise AmbiguousImageError(str(path), [one.name for one in found])
    return found[0] if found else None


def _is_digest(text: str) -> bool:
    match = _DIGEST.fullmatch(text)
    return match is not None and (not text.startswith("sha256:") or len(match["sum"]) == 64)


def _why_not(repository: str) -> str:
    if not repository:
        return "it names no repository"
    if repository != repository.lower():
        return f"repositories are written in small letters: {repository.lower()}"
    wrong: Sequence[str] = [
        part for part in repository.split("/") if not re.fullmatch(_COMPONENT, part)
    ]
    return (
        f"{wrong[0]!r} is no part of a repository; one has small letters and digits, "
        "with dots, dashes and underscores between them"
    )


def _wrong(text: str, why: str) -> ValueError:
    return ValueError(f"{text!r} is no name of an image: {why}")
