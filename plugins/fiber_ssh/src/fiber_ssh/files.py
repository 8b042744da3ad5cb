"""Transfer of files of the working directory to a host, addressed by content."""

from __future__ import annotations

import functools
import hashlib
import json
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import paramiko

from fiber.exceptions import BackendError, BackendUnavailableError, ConfigError
from fiber_ssh.config import SshConfig
from fiber_ssh.exec_channel import HostInfo, open_session, stderr_text
from fiber_ssh.hosts import Host
from fiber_ssh.remote.wire import Data, pack
from fiber_ssh.shell_command import MARKER, command_line

_PIECE = 256 * 1024


@attrs.frozen
class FileEntry:
    """A file of the working directory."""

    #: path relative to the working directory
    path: str
    #: permission bits
    mode: int
    #: SHA-256 of the content, in hex
    digest: str


class FileSender:
    """Sender of the files that the settings name to one host; used by one thread.

    Args:
        config: the settings.
        host: the host.
        fresh: seconds for which a listing of files is reused.
    """

    def __init__(self, config: SshConfig, host: Host, fresh: float) -> None:
        self._config = config
        self._fresh = fresh
        self._host = host
        self._folder: dict[str, str] = {}
        self._last: tuple[FileEntry, ...] = ()
        self._checked_at = float("-inf")

    def send(self, transport: paramiko.Transport, info: HostInfo, run_id: str) -> str:
        """Send the files whose content the host lacks; returns their folder on the host.

        Raises:
            BackendUnavailableError: the connection dropped.
            BackendError: the host cannot store them.
            ConfigError: a pattern matches nothing, or leads out of the working directory.
        """
        now = time.monotonic()
        if run_id in self._folder and now - self._checked_at < self._fresh:
            return self._folder[run_id]
        root = Path.cwd()
        files = find_files(root, self._config.send)
        if run_id not in self._folder or files != self._last:
            self._folder[run_id] = self._transfer(transport, info, run_id, root, files)
            self._last = files
        self._checked_at = now
        return self._folder[run_id]

    def _transfer(
        self,
        transport: paramiko.Transport,
        info: HostInfo,
        run_id: str,
        root: Path,
        files: Sequence[FileEntry],
    ) -> str:
        argv = [info.executable, "-I", "-S", info.archive, "files", info.root]
        by_digest = {file.digest: file for file in files}
        request = {
            "run": run_id,
            "folder": self._host.directory,
            "files": [[file.path, file.mode, file.digest] for file in files],
        }
        try:
            with open_session(transport, self._config.connect_timeout) as channel:
                channel.exec_command(command_line(argv, marked=True))
                answers = channel.makefile("rb")
                # endswith: shell output without a newline may stand before the marker
                while (line := answers.readline()) and not line.endswith(MARKER):
                    pass
                channel.sendall(pack(request))
                for number, digest in enumerate(self._answer(channel, answers)["missing"]):
                    with (root / by_digest[digest].path).open("rb") as file:
                        while piece := file.read(_PIECE):
                            channel.sendall(pack(Data(number, 0, piece, 0)))
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
            words = stderr_text(channel.makefile_stderr("rb").read())
            msg = f"host {self._host.name} does not take files: {words or 'it said nothing'}"
            raise BackendError(msg)
        found: dict[str, Any] = json.loads(line)
        return found


def find_files(root: Path, patterns: Sequence[str]) -> tuple[FileEntry, ...]:
    """The files below a folder that match patterns, with their digests, sorted by path.

    Args:
        root: the folder.
        patterns: as for ``Path.glob``; a folder stands for all files in it.

    Raises:
        ConfigError: a pattern matches nothing, or leads out of the folder.
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
        FileEntry(name, stat.S_IMODE(path.stat().st_mode), _digest(path))
        for name, path in sorted(found.items())
    )


def _digest(path: Path) -> str:
    status = path.stat()
    return _digest_of(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _digest_of(path: Path, _size: int, _changed: int) -> str:
    """SHA-256 of a file; the other arguments are those by which a change is noticed."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
