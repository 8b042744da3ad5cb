"""Copies out of jobs and volumes: one file or folder of a tar archive that others wrote.

The archive comes from where a user's or a stranger's program has written, so nothing in it is
believed: neither its names, nor links, nor types, nor that it has only what was asked for.
``tarfile``'s own filters do not do: the oldest Pythons have none, and with links they have failed
more than once. Here no link exists while anything is written.
"""

from __future__ import annotations

import math
import os
import posixpath
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fiber.exceptions import BackendError

__all__ = ["name_of", "parse_places", "unpack"]

#: most bytes of the headers of one member
_MOST = 2**20


def parse_places(
    src: str, dst: str, where: str
) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    """Parse source and target of a copy: name and path of the one that is elsewhere, None for the other.

    Raises:
        BackendError: not exactly one of them is ``NAME:PATH``; ``where`` says what that means.
    """
    source, target = _parse_place(src), _parse_place(dst)
    if (source is None) == (target is None):
        msg = f"one of {src!r} and {dst!r} must be {where}"
        raise BackendError(msg)
    return source, target


def _parse_place(word: str) -> tuple[str, str] | None:
    name, colon, path = word.partition(":")
    if not colon or "/" in name or name in ("", ".", ".."):
        return None
    return name, path


def name_of(path: str) -> str:
    """Return the name that a copy of a path gets in a folder: its last part, or "root"."""
    name = posixpath.basename(posixpath.normpath(path))
    return "root" if name in ("", ".", "..") else name


def unpack(stream: BinaryIO, name: str, dst: Path, origin: str) -> None:
    """Write the one file or folder of an archive, and replace a file that is there.

    Args:
        stream: the archive, uncompressed.
        name: of the file or folder; everything in the archive must be it or below it.
        dst: its path, or a folder that takes it in under its name.
        origin: who wrote the archive, for messages.

    Raises:
        BackendError: something else is in the archive, and nothing is at ``dst`` that was not
            before; or there is no room for it.
    """
    target = dst / name if dst.is_dir() else dst
    with tempfile.TemporaryDirectory(dir=target.absolute().parent) as folder:
        top = Path(folder, name)
        try:
            bounded: Any = _Stream(stream)
            with tarfile.open(fileobj=bounded, mode="r:") as archive:
                _write(archive, top, bounded)
        # ArithmeticError: times that no clock has; RecursionError: headers of headers
        except (tarfile.TarError, OSError, ValueError, ArithmeticError, RecursionError) as error:
            msg = f"what {origin} sent for {name!r} is not taken, and nothing was copied: {error}"
            raise BackendError(msg) from error
        shutil.move(str(top), target)


class _Stream:
    """A stream of which no more is read as the headers of a member than anybody's have.

    Headers are kept in memory, whatever size a stranger gave them; some Pythons read them whole, others
    in pieces.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell, self._read = stream.seek, stream.tell, stream.read
        #: bytes that may still be read
        self.left: float = _MOST

    def read(self, size: int) -> bytes:
        if size > self.left:
            msg = f"headers of more than {_MOST} bytes"
            raise ValueError(msg)
        self.left -= size
        return self._read(size)


def _write(archive: tarfile.TarFile, top: Path, stream: _Stream) -> None:
    folders: list[tuple[Path, float]] = []
    links: list[tuple[Path, str]] = []
    for member in archive:
        # kept otherwise, with its headers, until the end
        archive.members.clear()  # type: ignore[attr-defined] # the stubs do not know it
        path = _place(member.name, top)
        depth = len(path.relative_to(top).parts)
        if member.isdir():
            path.mkdir()
            folders.append((path, member.mtime))
        elif member.issparse():
            # its zeros are not in the archive, and would fill the disk
            msg = f"{member.name!r} has holes, with which neither engines nor Fiber write archives"
            raise ValueError(msg)
        elif member.isfile():
            content = archive.extractfile(member)
            assert content is not None
            # which is read in pieces that are not kept
            stream.left = math.inf
            with path.open("xb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(member.mode & 0o755 | 0o600)
            os.utime(path, (member.mtime, member.mtime))
        elif member.islnk():
            os.link(_place(member.linkname, top), path)
        elif member.issym() and not depth:
            msg = f"it is a link to {member.linkname!r}; copy what it leads to"
            raise ValueError(msg)
        elif member.issym():
            # no folder on its way may be a link itself, which would count as deeper than it is
            if not path.parent.is_dir() or not _stays(member.linkname, depth):
                msg = f"{member.name!r} is a link to {member.linkname!r}, which is outside of it"
                raise ValueError(msg)
            links.append((path, member.linkname))
        else:
            msg = f"{member.name!r} is neither a file nor a folder nor a link"
            raise ValueError(msg)
        # of the next one
        stream.left = _MOST
    for path, word in links:
        path.symlink_to(word)
    for path, mtime in reversed(folders):
        os.utime(path, (mtime, mtime))
    if not top.exists():
        msg = "it is empty"
        raise ValueError(msg)


def _place(word: str, top: Path) -> Path:
    """Return the path of a member, which is the top or below it."""
    parts = PurePosixPath(word).parts
    if parts[:1] != (top.name,) or ".." in parts:
        msg = f"{word!r} in it was not asked for"
        raise ValueError(msg)
    return top.joinpath(*parts[1:])


def _stays(link: str, depth: int) -> bool:
    """Return True for a link that leads nowhere but below the top, whatever other links do.

    Only the first parts may lead upwards: behind another link ``..`` is anywhere.
    """
    parts = PurePosixPath(link).parts
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and ups < depth and ".." not in parts[ups:]
