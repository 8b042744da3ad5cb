"""Makes an authenticated ssh connection to a host, through others where its configuration says so."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.config import SshConfig
from fiber_ssh.hostkeys import KnownHosts
from fiber_ssh.hosts import Host
from fiber_ssh.sshconfig import SshOptions, look_up

__all__ = ["DROPPED", "Connection", "dial", "options_of"]

log = logging.getLogger("fiber")

#: what paramiko raises where a connection drops, or is refused in the middle of something
DROPPED = (OSError, EOFError, paramiko.SSHException)

#: paramiko's logger for our connections, without what an exception tells whoever opened a channel
_LOG = "paramiko.transport.fiber"
logging.getLogger(_LOG).addFilter(lambda record: "open FAILED" not in record.getMessage())

_USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_MOST_JUMPS = 8


class Connection:
    """A connection to a host with those it goes through.

    Args:
        transports: in order, the host's own last.
        options: how the host is reached.
    """

    def __init__(self, transports: list[paramiko.Transport], options: SshOptions) -> None:
        self._transports = transports
        self.options = options

    @property
    def transport(self) -> paramiko.Transport:
        """The host's own."""
        return self._transports[-1]

    def close(self) -> None:
        """Close all of it. Idempotent."""
        _close(self._transports)


def _close(transports: list[paramiko.Transport]) -> None:
    for transport in reversed(transports):
        # one that goes through another says farewell there, which may be closed already
        with contextlib.suppress(*DROPPED):
            transport.close()


def options_of(host: Host, config: SshConfig) -> SshOptions:
    """How a host is reached, by what the user says of it over what the ssh configuration says."""
    found = look_up(config.config, host.name, user=host.user)
    import attrs

    changes: dict[str, Any] = {}
    if host.address is not None:
        changes["hostname"] = host.address
    if host.port is not None:
        changes["port"] = host.port
    if host.key is not None:
        changes["identity_files"] = (str(Path(host.key).expanduser()),)
        changes["identities_only"] = True
    return attrs.evolve(found, **changes)


def dial(host: Host, config: SshConfig) -> Connection:
    """Connect to a host and log in.

    Raises:
        BackendUnavailableError: it cannot be reached, is another or lets nobody in; with the fix.
        ConfigError: the ssh configuration makes no sense.
    """
    options = options_of(host, config)
    transports: list[paramiko.Transport] = []
    try:
        for hop in _hops(options, config):
            transports.append(_enter(hop, transports[-1] if transports else None, config))
            transports[-1].set_keepalive(0)
    except BaseException:
        _close(transports)
        raise
    return Connection(transports, options)


def _hops(options: SshOptions, config: SshConfig, depth: int = 0) -> list[SshOptions]:
    """The hosts to go through and the host itself, in order."""
    if depth > _MOST_JUMPS:
        msg = f"more than {_MOST_JUMPS} hosts lie before {options.name}; is there a loop of ProxyJump?"
        raise BackendUnavailableError(msg)
    hops: list[SshOptions] = []
    for number, word in enumerate(options.proxy_jump):
        jump = _jump(word, config)
        # only the first one is reached as its own configuration says: the others lie behind it
        hops += _hops(jump, config, depth + 1) if number == 0 else [jump]
    return [*hops, options]


def _jump(word: str, config: SshConfig) -> SshOptions:
    import attrs

    rest = word.removeprefix("ssh://")
    user, _, rest = rest.rpartition("@")
    name, port = rest, ""
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    found = look_up(config.config, name, user=user or None)
    return attrs.evolve(found, port=int(port)) if port.isdigit() else found


def _enter(
    options: SshOptions, before: paramiko.Transport | None, config: SshConfig
) -> paramiko.Transport:
    where = f"{options.name} ({options.hostname} port {options.port})"
    sock = _stream(options, before, config, where)
    known = KnownHosts.read(options.key_name, options.known_hosts)
    try:
        transport = paramiko.Transport(sock)
    except BaseException:
        sock.close()
        raise
    try:
        transport.daemon = True
        transport.set_log_channel(_LOG)
        transport.banner_timeout = transport.auth_timeout = config.connect_timeout
        _prefer(transport, known)
        transport.start_client(timeout=config.connect_timeout)
        known.check(transport.get_remote_server_key(), options.name)
        _log_in(transport, options, where)
    except DROPPED as error:
        transport.close()
        if isinstance(error, BackendUnavailableError):
            raise
        msg = f"no ssh connection to {where}: {error or type(error).__name__}"
        raise BackendUnavailableError(msg) from error
    except BaseException:
        transport.close()
        raise
    return transport


def _stream(
    options: SshOptions, before: paramiko.Transport | None, config: SshConfig, where: str
) -> Any:
    try:
        if before is not None:
            there = (options.hostname, options.port)
            return before.open_channel(
                "direct-tcpip", there, ("127.0.0.1", 0), timeout=config.connect_timeout
            )
        if options.proxy_command:
            return paramiko.ProxyCommand(options.proxy_command)
        there = (options.hostname, options.port)
        sock = socket.create_connection(there, timeout=config.connect_timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, paramiko.SSHException) as error:
        msg = f"{where} cannot be reached: {error}"
        raise BackendUnavailableError(msg) from error
    return sock


def _prefer(transport: paramiko.Transport, known: KnownHosts) -> None:
    """Ask for keys of the kinds that are known: a host has several, and shows one."""
    security = transport.get_security_options()
    wanted = []
    for name in known.algorithms:
        # one RSA key signs in several ways
        names = ("rsa-sha2-512", "rsa-sha2-256") if name == "ssh-rsa" else (name,)
        wanted += [one for one in names if one in security.key_types]
    if wanted:
        security.key_types = [*wanted, *(n for n in security.key_types if n not in wanted)]


def _log_in(transport: paramiko.Transport, options: SshOptions, where: str) -> None:
    tried: list[str] = []
    # keys of an agent sign over its connection
    with _agent_keys(options) as held:
        if _try_keys(transport, options, held, tried):
            return
    told = "; ".join(tried) or "there is no key to try"
    msg = (
        f"{options.user} cannot log in to {where} by key ({told}); run ssh-copy-id -p "
        f"{options.port} {options.user}@{options.hostname}, or name the key in the hosts file"
    )
    raise BackendUnavailableError(msg)


def _try_keys(
    transport: paramiko.Transport, options: SshOptions, held: list[Any], tried: list[str]
) -> bool:
    for what, key in _keys(options, held, tried):
        try:
            missing = transport.auth_publickey(options.user, key)
        except paramiko.BadAuthenticationType as error:
            tried.append(f"{what}: it accepts {', '.join(error.allowed_types)} only")
            break
        except paramiko.AuthenticationException:
            tried.append(f"{what}: refused")
            if not transport.is_active():
                break
            continue
        if not missing and transport.is_authenticated():
            return True
        tried.append(f"{what}: accepted, and it wants {', '.join(missing)} besides")
    return False


def _keys(options: SshOptions, held: list[Any], tried: list[str]) -> Iterator[tuple[str, Any]]:
    """Keys to try, lazily: those of the agent that were named, those of files, all others."""
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


def agent_socket(wanted: str | None, environ: Mapping[str, str]) -> str | None:
    """Where the agent listens that a user's configuration asks for; None for none.

    Args:
        wanted: ``IdentityAgent`` as ssh_config(5) has it: a path, ``none``, ``SSH_AUTH_SOCK``, or a
            variable's name behind ``$``; None where it says nothing.
        environ: the environment.
    """
    if wanted is None or wanted == "SSH_AUTH_SOCK":
        wanted = "$SSH_AUTH_SOCK"
    if wanted.lower() == "none":
        return None
    if wanted.startswith("$"):
        return environ.get(wanted[1:].strip("{}")) or None
    return wanted


class _Agent(paramiko.agent.AgentSSH):  # type: ignore[misc] # it has no types
    """The agent at a socket; paramiko's own one is where the environment says."""

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
        """Let go of the connection."""
        self._close()


@contextlib.contextmanager
def _agent_keys(options: SshOptions) -> Iterator[list[Any]]:
    path = agent_socket(options.identity_agent, os.environ)
    if path is None:
        yield []
        return
    try:
        agent = _Agent(path)
    except (paramiko.SSHException, OSError) as error:
        log.debug("ssh-agent cannot be asked: %s", error)
        yield []
        return
    with contextlib.closing(agent):
        yield list(agent.get_keys())


def _public_blob(file: str) -> bytes | None:
    import base64
    import binascii

    try:
        words = Path(f"{file}.pub").read_text(encoding="utf-8").split()
        return base64.b64decode(words[1])
    except (OSError, IndexError, binascii.Error, UnicodeDecodeError):
        return None
