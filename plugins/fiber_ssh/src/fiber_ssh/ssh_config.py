"""The user's ``~/.ssh/config``: Include, Host, Match and the options that make a connection.

Written by the manual page ssh_config(5): for each option the first value found counts, save
IdentityFile, of which all count.
"""

from __future__ import annotations

import fnmatch
import functools
import getpass
import glob
import hashlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from fiber.exceptions import ConfigError

log = logging.getLogger("fiber")

_DEPTH = 16
_SEPARATOR = re.compile(r"\s*=\s*|\s+")
_LISTS = ("identityfile",)
_SWITCHES = {"yes": True, "true": True, "no": False, "false": False}
# what restricts whom ssh trusts, or how, and paramiko is not told; the worst first
_NOT_APPLIED = {
    option.lower(): option
    for option in (
        "RevokedHostKeys",
        "HostKeyAlgorithms",
        "KexAlgorithms",
        "Ciphers",
        "MACs",
        "PubkeyAcceptedAlgorithms",
        "PubkeyAcceptedKeyTypes",
        "RequiredRSASize",
    )
}


@attrs.frozen(kw_only=True)
class SshOptions:
    """Options of the connection to one host."""

    #: the name that was looked up
    name: str
    #: host name or address to connect to
    hostname: str
    #: user to log in as
    user: str
    #: port of its sshd
    port: int = 22
    #: private keys to try, in order; empty for the default ones
    identity_files: tuple[str, ...] = ()
    #: True to try no keys of ssh-agent but those
    identities_only: bool = False
    #: ``IdentityAgent``: socket of ssh-agent; "none" to use no agent
    identity_agent: str | None = None
    #: jump hosts, in order, as ``[user@]host[:port]``
    proxy_jump: tuple[str, ...] = ()
    #: ``ProxyCommand``: program that makes the connection
    proxy_command: str | None = None
    #: known_hosts files
    known_hosts: tuple[str, ...] = ()
    #: ``HostKeyAlias``: name of its key in them
    host_key_alias: str | None = None

    @property
    def key_name(self) -> str:
        """Its name in known_hosts files."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


def look_up(
    path: Path,
    name: str,
    timeout: float,
    *,
    user: str | None = None,
    system: Path | None = Path("/etc/ssh/ssh_config"),
) -> SshOptions:
    """Look up the options for a host; ``user`` is the one that was named beside it.

    A command of ``Match exec`` is ended after the timeout.

    Raises:
        ConfigError: a file cannot be read, or is invalid; a command cannot be run, or does not end.
    """
    home = Path.home()
    state = _State(name, user, home, timeout)
    for file, base in ((path.expanduser(), home / ".ssh"), (system, Path("/etc/ssh"))):
        if file is not None and file.is_file():
            before = set(state.found)
            _read(file, base, state, depth=0, active=True)
            added = {key: value for key, value in state.found.items() if key not in before}
            _warn_of_unapplied(file, added, of_user=file is not system)
    return state.options()


def _warn_of_unapplied(file: Path, found: Mapping[str, str], *, of_user: bool) -> None:
    # distributions limit algorithms for everybody, which is no wish of the user's
    keys = [key for key in _NOT_APPLIED if of_user or key == "revokedhostkeys"]
    names = [_NOT_APPLIED[key] for key in keys if found.get(key, "none").lower() != "none"]
    if names:
        _warn_once(file, ", ".join(names))


@functools.cache
def _warn_once(file: Path, names: str) -> None:
    """Name options of a file that Fiber does not apply; once, however many hosts there are."""
    advice = "; write revoked keys into known_hosts, behind @revoked" if "Revoked" in names else ""
    log.warning(
        "fiber: the ssh configuration %s sets %s, which Fiber does not apply%s", file, names, advice
    )


class _State:
    """Options found so far; the first value of each is kept."""

    def __init__(self, name: str, user: str | None, home: Path, timeout: float) -> None:
        self.name = name
        self.home = home
        self.timeout = timeout
        self.local_user = getpass.getuser()
        self.found: dict[str, str] = {} if user is None else {"user": user}
        self.lists: dict[str, list[str]] = {}

    def set(self, key: str, value: str) -> None:
        if key in _LISTS:
            self.lists.setdefault(key, []).append(value)
        else:
            self.found.setdefault(key, value)

    @property
    def hostname(self) -> str:
        return (
            self.found.get("hostname", "%h")
            .replace("%%", "\0")
            .replace("%h", self.name)
            .replace("\0", "%")
        )

    @property
    def user(self) -> str:
        return self.found.get("user", self.local_user)

    def expand(self, text: str) -> str:
        """Replace tokens (``%h`` …) and ``~``, as in ssh_config(5)."""
        port = self.found.get("port", "22")
        local = socket.gethostname()
        tokens: Mapping[str, str] = {
            "%": "%",
            "h": self.hostname,
            "n": self.name,
            "p": port,
            "r": self.user,
            "u": self.local_user,
            "d": str(self.home),
            "l": local,
            "L": local.partition(".")[0],
            "k": self.found.get("hostkeyalias", self.name),
            "C": hashlib.sha1(
                f"{local}{self.hostname}{port}{self.user}".encode(errors="surrogateescape"),
                usedforsecurity=False,
            ).hexdigest(),
        }
        text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
        if text == "~" or text.startswith("~/"):
            text = str(self.home) + text[1:]
        return text

    def options(self) -> SshOptions:
        found = self.found
        port = found.get("port", "22")
        if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            msg = f"the ssh configuration has port {port!r} for {self.name}"
            raise ConfigError(msg)
        only = found.get("identitiesonly", "no").lower()
        if only not in _SWITCHES:
            msg = f"the ssh configuration has IdentitiesOnly {only!r} for {self.name}; write yes or no"
            raise ConfigError(msg)
        jump = found.get("proxyjump", "none")
        command = found.get("proxycommand", "none")
        usual = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
        shared = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
        files = [
            *_words(found.get("userknownhostsfile", usual), f"UserKnownHostsFile of {self.name}"),
            *_words(
                found.get("globalknownhostsfile", shared), f"GlobalKnownHostsFile of {self.name}"
            ),
        ]
        agent = found.get("identityagent")
        return SshOptions(
            name=self.name,
            hostname=self.hostname,
            user=self.user,
            port=int(port),
            identity_files=tuple(
                self.expand(file) for file in self.lists.get("identityfile", ()) if file != "none"
            ),
            identities_only=_SWITCHES[only],
            identity_agent=None if agent is None else self.expand(agent),
            proxy_jump=() if jump.lower() == "none" else tuple(jump.replace(" ", "").split(",")),
            proxy_command=None
            if command.lower() == "none" or jump.lower() != "none"
            else self.expand(command),
            known_hosts=tuple(self.expand(file) for file in files if file != "none"),
            host_key_alias=found.get("hostkeyalias"),
        )


def _read(file: Path, base: Path, state: _State, *, depth: int, active: bool) -> None:
    if depth > _DEPTH:
        msg = f"{file} is included too deep; does a file include itself?"
        raise ConfigError(msg)
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        msg = f"the ssh configuration {file} cannot be read: {error}"
        raise ConfigError(msg) from error
    outer = active
    for number, key, value in _lines(text):
        origin = f"{file} line {number}"
        if key == "host":
            active = outer and _matches_host(_words(value, origin), state.name)
        elif key == "match":
            active = outer and _matches(_words(value, origin), state, origin)
        elif key == "include":
            if not active:
                continue
            for pattern in _words(value, origin):
                full = state.expand(pattern)
                for found in sorted(glob.glob(str(base / full))):  # noqa: PTH207 - a pattern may be absolute
                    if Path(found).is_file():
                        _read(Path(found), base, state, depth=depth + 1, active=True)
        elif active:
            state.set(key, _value(key, value, origin))


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, *rest = _SEPARATOR.split(stripped, maxsplit=1)
        yield number, key.lower(), rest[0] if rest else ""


def _words(value: str, origin: str) -> Sequence[str]:
    try:
        return shlex.split(value, comments=True)
    except ValueError as error:
        msg = f"{origin} makes no sense: {error}"
        raise ConfigError(msg) from error


def _value(key: str, value: str, origin: str) -> str:
    if key in ("proxycommand", "userknownhostsfile", "globalknownhostsfile"):
        # ProxyCommand is for a shell, the others are lists
        return value
    words = _words(value, origin)
    return " ".join(words) if key == "proxyjump" else words[0] if words else ""


def _matches_host(patterns: Sequence[str], name: str) -> bool:
    matched = False
    for pattern in patterns:
        positive = pattern.removeprefix("!")
        if fnmatch.fnmatchcase(name, positive):
            if positive is not pattern and pattern.startswith("!"):
                return False
            matched = True
    return matched


def _matches(words: Sequence[str], state: _State, origin: str) -> bool:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        positive = not word.startswith("!")
        kind, equals, argument = word.removeprefix("!").lower().partition("=")
        holds: bool | None
        if kind == "all":
            holds = True
        elif kind in ("canonical", "final"):
            # these need a second pass, which is not made
            holds = False
        else:
            if not equals:
                if not rest:
                    msg = f"{origin}: 'Match {word}' needs an argument"
                    raise ConfigError(msg)
                argument = rest.pop(0)
            else:
                argument = word.partition("=")[2]
            holds = _holds(kind, argument, state, origin)
        # None: not understood; a block of that kind is for nobody, negated or not
        if holds is not positive:
            return False
    return True


def _holds(kind: str, argument: str, state: _State, origin: str) -> bool | None:
    subject = {
        "host": state.hostname,
        "originalhost": state.name,
        "user": state.user,
        "localuser": state.local_user,
    }.get(kind)
    if subject is not None:
        return _matches_host(argument.split(","), subject)
    if kind == "exec":
        return _succeeds(state.expand(argument), state.timeout)
    log.warning(
        "fiber: %s: 'Match %s' is not understood here, so that it matches nothing", origin, kind
    )
    return None


def _succeeds(command: str, timeout: float) -> bool:
    """Run a command of ``Match exec`` in the user's shell, as ssh does."""
    words = [os.environ.get("SHELL") or "/bin/sh", "-c", command]
    nothing = subprocess.DEVNULL
    try:
        with subprocess.Popen(
            words, stdin=nothing, stdout=nothing, start_new_session=True
        ) as process:
            try:
                return process.wait(timeout) == 0
            except BaseException:
                # what the shell has started too
                os.killpg(process.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"'Match exec' of the ssh configuration: {error}"
        raise ConfigError(msg) from error
