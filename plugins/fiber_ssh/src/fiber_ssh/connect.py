"""Authenticated ssh connections: host keys, log-in by key or ssh-agent, ProxyJump, ProxyCommand."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys
from paramiko.pkey import PKey

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.config import SshConfig
from fiber_ssh.hosts import Host
from fiber_ssh.ssh_config import SshOptions, look_up

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


#: exceptions of paramiko where a connection drops, or is refused halfway
CONNECTION_ERRORS = (OSError, EOFError, paramiko.SSHException)

#: paramiko's logger for our connections, without errors and their tracebacks, which Python prints
#: where nothing is configured: each is an exception of a call already
_LOGGER_NAME = "paramiko.transport.fiber"
logging.getLogger(_LOGGER_NAME).addFilter(lambda record: record.levelno < logging.ERROR)

_USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_MAX_HOPS = 8


class Connection:
    """Connection to a host, with those to the jump hosts before it."""

    def __init__(self) -> None:
        #: the jump hosts' in order, the host's own last
        self.transports: list[paramiko.Transport] = []

    @property
    def transport(self) -> paramiko.Transport:
        """The transport of the host itself."""
        return self.transports[-1]

    def close(self) -> None:
        """Close all transports. Idempotent."""
        for transport in reversed(self.transports):
            # it sends a last message through the one before it, which may be closed already
            with contextlib.suppress(*CONNECTION_ERRORS):
                transport.close()


def ssh_options(host: Host, config: SshConfig) -> SshOptions:
    """Options of a host: those of the hosts setting, then those of the ssh configuration."""
    found = look_up(config.config, host.name, config.connect_timeout, user=host.user)
    changes: dict[str, Any] = {}
    if host.address is not None:
        changes["hostname"] = host.address
    if host.port is not None:
        changes["port"] = host.port
    if host.key is not None:
        changes["identity_files"] = (str(Path(host.key).expanduser()),)
        changes["identities_only"] = True
    return attrs.evolve(found, **changes)


def connect(host: Host, config: SshConfig) -> Connection:
    """Connect to a host and log in.

    Raises:
        BackendUnavailableError: it cannot be reached, has another key or refuses the log-in; with
            the fix.
        ConfigError: the ssh configuration is invalid.
    """
    options = ssh_options(host, config)
    connection = Connection()
    jump: _JumpHost | None = None
    try:
        for hop in _hops(options, config):
            transport = _connect_hop(hop, jump, config, is_jump=hop is not options)
            connection.transports.append(transport)
            transport.set_keepalive(0)
            jump = _JumpHost(hop.name, transport)
    except BaseException:
        connection.close()
        raise
    return connection


@attrs.frozen
class _JumpHost:
    """A jump host that is connected."""

    name: str
    transport: paramiko.Transport


def _hops(options: SshOptions, config: SshConfig, depth: int = 0) -> list[SshOptions]:
    """The jump hosts and the host itself, in order."""
    if depth > _MAX_HOPS:
        msg = (
            f"more than {_MAX_HOPS} hosts lie before {options.name}; is there a loop of ProxyJump?"
        )
        raise BackendUnavailableError(msg)
    hops: list[SshOptions] = []
    for number, word in enumerate(options.proxy_jump):
        jump = _jump(word, config)
        # as in ssh, only the first one's own jump hosts count: the others are reached through it
        hops += _hops(jump, config, depth + 1) if number == 0 else [jump]
    return [*hops, options]


def _jump(word: str, config: SshConfig) -> SshOptions:
    rest = word.removeprefix("ssh://")
    user, _, rest = rest.rpartition("@")
    name, port = rest, ""
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    found = look_up(config.config, name, config.connect_timeout, user=user or None)
    return attrs.evolve(found, port=int(port)) if port.isdigit() else found


def _connect_hop(
    options: SshOptions, jump: _JumpHost | None, config: SshConfig, *, is_jump: bool
) -> paramiko.Transport:
    label = f"{options.name} ({options.hostname} port {options.port})"
    if is_jump:
        label = f"jump host {label}"
    sock = _open_socket(options, jump, config, label)
    known = KnownHosts.read(options.key_name, options.known_hosts)
    try:
        transport = paramiko.Transport(sock)
    except BaseException:
        sock.close()
        raise
    try:
        transport.daemon = True
        transport.set_log_channel(_LOGGER_NAME)
        transport.banner_timeout = transport.auth_timeout = config.connect_timeout
        _prefer_known_algorithms(transport, known)
        transport.start_client(timeout=config.connect_timeout)
        known.check(transport.get_remote_server_key(), options.name)
        _log_in(transport, options, label)
    except CONNECTION_ERRORS as error:
        transport.close()
        if isinstance(error, BackendUnavailableError):
            raise
        words = f"{error or type(error).__name__}"
        msg = f"no ssh connection to {label}: {_explain(words, error, transport, options, config)}"
        raise BackendUnavailableError(msg) from error
    except BaseException:
        transport.close()
        raise
    return transport


def _explain(
    words: str,
    error: Exception,
    transport: paramiko.Transport,
    options: SshOptions,
    config: SshConfig,
) -> str:
    """The words of a failed connection, with what they mean and what to do."""
    if isinstance(error, paramiko.IncompatiblePeer):
        return (
            f"{words}; its sshd_config allows nothing that paramiko has: see KexAlgorithms, Ciphers, "
            "MACs and HostKeyAlgorithms there"
        )
    if not transport.remote_version:
        where = f"ProxyCommand {options.proxy_command!r}" if options.proxy_command else "the port"
        return (
            f"nothing there said within {config.connect_timeout:g} s that it is an sshd ({words}); "
            f"see the address and {where}"
        )
    return words


def _open_socket(options: SshOptions, jump: _JumpHost | None, config: SshConfig, label: str) -> Any:
    try:
        if jump is not None:
            target = (options.hostname, options.port)
            return jump.transport.open_channel(
                "direct-tcpip", target, ("127.0.0.1", 0), timeout=config.connect_timeout
            )
        if options.proxy_command:
            return paramiko.ProxyCommand(options.proxy_command)
        target = (options.hostname, options.port)
        sock = socket.create_connection(target, timeout=config.connect_timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except CONNECTION_ERRORS as error:
        words = f"{error or type(error).__name__}" if jump is None else _refusal(jump, error)
        msg = f"{label} cannot be reached: {words}"
        raise BackendUnavailableError(msg) from error
    return sock


def _refusal(jump: _JumpHost, error: Exception) -> str:
    """Why a jump host has not connected to the host behind it."""
    if not isinstance(error, paramiko.ChannelException):
        words = str(error) or type(error).__name__
        return f"the connection to jump host {jump.name} ended ({words})"
    if error.code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
        return (
            f"jump host {jump.name} forwards no connections there; see AllowTcpForwarding, "
            "DisableForwarding and PermitOpen in its sshd_config"
        )
    return f"jump host {jump.name} cannot connect to it ({error.text})"


def _prefer_known_algorithms(transport: paramiko.Transport, known: KnownHosts) -> None:
    """Negotiate a host key of a kind that known_hosts has: a host has several, and shows one."""
    security = transport.get_security_options()
    preferred = []
    for name in known.algorithms:
        # one RSA key signs in several ways
        names = ("rsa-sha2-512", "rsa-sha2-256") if name == "ssh-rsa" else (name,)
        preferred += [one for one in names if one in security.key_types]
    if preferred:
        security.key_types = [*preferred, *(n for n in security.key_types if n not in preferred)]


def _log_in(transport: paramiko.Transport, options: SshOptions, label: str) -> None:
    tried: list[str] = []
    # keys of an agent sign over its connection
    with _agent_keys(options) as held:
        if _try_keys(transport, options, held, tried):
            return
    attempts = "; ".join(tried) or "there is no key to try"
    msg = (
        f"{options.user} cannot log in to {label} by key ({attempts}); run ssh-copy-id -p "
        f"{options.port} {options.user}@{options.hostname}, or name the key in the hosts file"
    )
    raise BackendUnavailableError(msg)


def _try_keys(
    transport: paramiko.Transport, options: SshOptions, held: list[Any], tried: list[str]
) -> bool:
    for what, key in _candidate_keys(options, held, tried):
        try:
            missing = transport.auth_publickey(options.user, key)
        except paramiko.BadAuthenticationType as error:
            accepted = ", ".join(filter(None, error.allowed_types))
            tried.append(f"{what}: it accepts {f'{accepted} only' if accepted else 'no method'}")
            break
        except paramiko.AuthenticationException:
            tried.append(f"{what}: refused")
            if not transport.is_active():
                break
            continue
        if not missing and transport.is_authenticated():
            return True
        tried.append(f"{what}: accepted, but {', '.join(missing)} is required too")
    return False


def _candidate_keys(
    options: SshOptions, held: list[Any], tried: list[str]
) -> Iterator[tuple[str, Any]]:
    """Keys to try, lazily: named ones in ssh-agent, those of files, others in ssh-agent."""
    files = list(options.identity_files)
    if not files:
        files = [str(Path.home() / ".ssh" / name) for name in _USUAL_KEYS]
    public = {_public_blob(file) for file in files} - {None}
    for key in held:
        if key.asbytes() in public:
            yield "a key of ssh-agent", key
    for file in files:
        if _public_blob(file) in {key.asbytes() for key in held}:
            continue
        if not Path(file).is_file():
            if options.identity_files:
                tried.append(f"{file}: there is no such file")
            continue
        try:
            key = paramiko.PKey.from_path(file)
        except (paramiko.PasswordRequiredException, TypeError):
            tried.append(f"{file}: it has a passphrase; run ssh-add {file}")
            continue
        except (paramiko.SSHException, ValueError, OSError) as error:
            tried.append(f"{file}: it cannot be read ({error})")
            continue
        yield file, key
    if not options.identities_only:
        for key in held:
            if key.asbytes() not in public:
                yield "a key of ssh-agent", key


def agent_socket(option: str | None, environ: Mapping[str, str]) -> str | None:
    """Path of the ssh-agent socket that a configuration names; None for no agent.

    Args:
        option: ``IdentityAgent`` as in ssh_config(5): a path, ``none``, ``SSH_AUTH_SOCK``, or ``$``
            and a variable's name; None where it is not set.
        environ: the environment.
    """
    if option is None or option == "SSH_AUTH_SOCK":
        option = "$SSH_AUTH_SOCK"
    if option.lower() == "none":
        return None
    if option.startswith("$"):
        return environ.get(option[1:].strip("{}")) or None
    return option


class _SshAgent(paramiko.agent.AgentSSH):  # type: ignore[misc] # it has no types
    """Client of the ssh-agent at a socket; paramiko's own class takes ``SSH_AUTH_SOCK`` alone."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            # a user may have to confirm each use of a key, however long that takes
            connection.setblocking(True)
            connection.connect(path)
            self._connect(connection)
            undo.pop_all()

    def close(self) -> None:
        """Close the connection."""
        self._close()


@contextlib.contextmanager
def _agent_keys(options: SshOptions) -> Iterator[list[Any]]:
    path = agent_socket(options.identity_agent, os.environ)
    if path is None:
        yield []
        return
    try:
        agent = _SshAgent(path)
    except (paramiko.SSHException, OSError) as error:
        log.debug("ssh-agent cannot be asked: %s", error)
        yield []
        return
    with contextlib.closing(agent):
        yield list(agent.get_keys())


def _public_blob(file: str) -> bytes | None:
    try:
        words = Path(f"{file}.pub").read_text(encoding="utf-8").split()
        return base64.b64decode(words[1])
    except (OSError, IndexError, binascii.Error, UnicodeDecodeError):
        return None
