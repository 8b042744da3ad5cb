"""Sends files of the working directory to a host: by content, and only what it lacks."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import paramiko

from fiber.exceptions import BackendError, BackendUnavailableError, ConfigError
from fiber_ssh.command import MARK, command_line
from fiber_ssh.config import SshConfig
from fiber_ssh.hosts import Host
from fiber_ssh.remote.wire import pack, pack_data
from fiber_ssh.shell import About, words_of

__all__ = ["FileSender", "Sent", "find_files"]

_PIECE = 256 * 1024
#: seconds within which files are not looked at again
_FRESH = 1.0


@attrs.frozen
class Sent:
    """A file of the working directory."""

    #: where it lies, below the working directory
    path: str
    #: its permissions
    mode: int
    #: SHA-256 of its content
    digest: str


class FileSender:
    """Has one host hold what the settings name; used by one thread.

    Args:
        config: the settings.
        host: the host.
    """

    def __init__(self, config: SshConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._folder: dict[str, str] = {}
        self._last: tuple[Sent, ...] = ()
        self._looked = float("-inf")

    def send(self, transport: paramiko.Transport, about: About, run_id: str) -> str:
        """Send what changed; returns the folder on the host.

        Raises:
            BackendUnavailableError: the connection dropped.
            BackendError: the host cannot hold them.
            ConfigError: a pattern names nothing, or something outside of the working directory.
        """
        now = time.monotonic()
        if run_id in self._folder and now - self._looked < _FRESH:
            return self._folder[run_id]
        root = Path.cwd()
        files = find_files(root, self._config.send)
        if run_id not in self._folder or files != self._last:
            self._folder[run_id] = self._transfer(transport, about, run_id, root, files)
            self._last = files
        self._looked = now
        return self._folder[run_id]

    def _transfer(
        self,
        transport: paramiko.Transport,
        about: About,
        run_id: str,
        root: Path,
        files: Sequence[Sent],
    ) -> str:
        argv = [about.executable, "-I", "-S", about.archive, "files", about.root]
        by_digest = {file.digest: file for file in files}
        order = {
            "run": run_id,
            "folder": self._host.directory,
            "files": [[file.path, file.mode, file.digest] for file in files],
        }
        try:
            with transport.open_session() as channel:
                channel.exec_command(command_line(argv, marked=True))
                answers = channel.makefile("rb")
                # without its end where the line before was not ended
                while (line := answers.readline()) and not line.endswith(MARK):
                    pass
                channel.sendall(pack(order))
                for number, digest in enumerate(self._answer(channel, answers)["missing"]):
                    with (root / by_digest[digest].path).open("rb") as file:
                        while piece := file.read(_PIECE):
                            channel.sendall(pack_data(number, 0, piece, 0))
                    channel.sendall(pack({"done": number}))
                return str(self._answer(channel, answers)["folder"])
        except (paramiko.SSHException, EOFError) as error:
            msg = f"the connection to host {self._host.name} dropped while files were sent: {error}"
            raise BackendUnavailableError(msg) from error
        except OSError as error:
            msg = f"files cannot be sent to host {self._host.name}: {error}"
            raise BackendError(msg) from error

    def _answer(self, channel: paramiko.Channel, answers: Any) -> dict[str, Any]:
        line = answers.readline()
        if not line:
            words = words_of(channel.makefile_stderr("rb").read())
            msg = f"host {self._host.name} does not take files: {words or 'it said nothing'}"
            raise BackendError(msg)
        found: dict[str, Any] = json.loads(line)
        return found


_digests: dict[tuple[str, int, int], str] = {}
_digests_lock = threading.Lock()


def find_files(root: Path, patterns: Sequence[str]) -> tuple[Sent, ...]:
    """The files below a folder that patterns name, each with its digest; in the order of names.

    Args:
        root: the folder.
        patterns: as ``Path.glob`` has them; a folder stands for all that is in it.

    Raises:
        ConfigError: a pattern names nothing, or something outside of the folder.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        if pattern.startswith("/") or ".." in pattern.split("/"):
            msg = (
                f"FIBER_SSH_SEND has {pattern!r}, which is outside of the working directory {root}"
            )
            raise ConfigError(msg)
        matches = [path for path in root.glob(pattern) if path.is_file()]
        for folder in [path for path in root.glob(pattern) if path.is_dir()]:
            matches += [path for path in folder.rglob("*") if path.is_file()]
        if not matches:
            msg = f"FIBER_SSH_SEND has {pattern!r}, and {root} has no such file"
            raise ConfigError(msg)
        found.update((path.relative_to(root).as_posix(), path) for path in matches)
    return tuple(
        Sent(name, stat.S_IMODE(path.stat().st_mode), _digest(path))
        for name, path in sorted(found.items())
    )


def _digest(path: Path) -> str:
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    with _digests_lock:
        known = _digests.get(key)
    if known is None:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        known = digest.hexdigest()
        with _digests_lock:
            _digests[key] = known
    return known
