"""Host keys of the known_hosts files, and the check of a host's key against them."""

from __future__ import annotations

import base64
import fnmatch
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from paramiko.hostkeys import HostKeyEntry, HostKeys
from paramiko.pkey import PKey

from fiber.exceptions import BackendUnavailableError

__all__ = ["KnownHosts"]

log = logging.getLogger("fiber")


@attrs.frozen
class KnownHosts:
    """Known and revoked keys of one host."""

    #: its name in the files
    name: str
    #: file to add a key to, for messages
    file: str
    keys: tuple[PKey, ...] = ()
    revoked: tuple[PKey, ...] = ()

    @classmethod
    def read(cls, name: str, files: Sequence[str]) -> KnownHosts:
        """Read a host's keys from files; missing files are skipped."""
        keys: list[PKey] = []
        revoked: list[PKey] = []
        for file in files:
            for marker, key in _entries(file, name):
                if marker == "@revoked":
                    revoked.append(key)
                elif not marker:
                    keys.append(key)
        return cls(name, files[0] if files else "~/.ssh/known_hosts", tuple(keys), tuple(revoked))

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Kinds of the known keys, to be negotiated first."""
        return tuple(dict.fromkeys(key.get_name() for key in self.keys))

    def check(self, key: PKey, host: str) -> None:
        """Return where this is a known key of the host.

        Args:
            key: the key that the host has proved to have.
            host: its name in the settings.

        Raises:
            BackendUnavailableError: another key is known, or none, with the line to add; or it is
                revoked.
        """
        line = f"{self.name} {key.get_name()} {key.get_base64()}"
        if key in self.revoked:
            msg = f"the key of {host} ({self.name}) is marked as revoked in {self.file}"
            raise BackendUnavailableError(msg)
        if key in self.keys:
            return
        shown = f"{key.get_name()} {key.fingerprint}"
        if self.keys:
            known = ", ".join(f"{one.get_name()} {one.fingerprint}" for one in self.keys)
            msg = (
                f"the key of {host} is not the one that is known: it shows {shown}, known is "
                f"{known}; somebody may be in between. If the host was set up anew, run "
                f"ssh-keygen -R '{self.name}' -f {self.file} and add: {line}"
            )
            raise BackendUnavailableError(msg)
        msg = (
            f"the key of {host} is not known; it shows {shown}. If that is the key of the host, "
            f"add this line to {self.file}: {line}"
        )
        raise BackendUnavailableError(msg)


def _entries(file: str, name: str) -> Iterable[tuple[str, PKey]]:
    """Yield markers and keys of the lines for a host; lines that make no sense are for none."""
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError, ValueError):
        # most users have few of the files that ssh looks for
        return
    for number, full in enumerate(text.splitlines(), 1):
        # paramiko takes one blank between fields alone
        line = " ".join(full.split())
        marker = ""
        if line.startswith("@"):
            marker, _, line = line.partition(" ")
        if not line or line.startswith("#"):
            continue
        try:
            _check_lengths(line)
            entry = HostKeyEntry.from_line(line, number)
            is_mine = entry is not None and _is_for(entry, name)
        except Exception as error:  # paramiko's parsers raise a dozen kinds, AssertionError too
            level = logging.WARNING if marker == "@revoked" else logging.DEBUG
            log.log(level, "fiber: %s line %d is no key of a host: %s", file, number, error)
            continue
        if entry is not None and is_mine and entry.key is not None:
            yield marker, entry.key


def _check_lengths(line: str) -> None:
    """Raise ValueError for a line whose key announces more than it has.

    paramiko would fill it up with a megabyte of zeros and count with that for seconds.
    """
    blob = base64.b64decode((line.split(" ", 3)[2:3] or [""])[0])
    end = 0
    while end < len(blob):
        end += 4 + int.from_bytes(blob[end : end + 4], "big")
    if end > len(blob):
        msg = "its key is cut short"
        raise ValueError(msg)


def _is_for(entry: HostKeyEntry, name: str) -> bool:
    matched = False
    for pattern in entry.hostnames or ():
        if pattern.startswith("|1|"):
            matched = matched or HostKeys.hash_host(name, pattern) == pattern
        elif pattern.startswith("!"):
            if fnmatch.fnmatchcase(name, pattern[1:]):
                return False
        elif pattern == name or ("[" not in pattern and fnmatch.fnmatchcase(name, pattern)):
            matched = True
    return matched
