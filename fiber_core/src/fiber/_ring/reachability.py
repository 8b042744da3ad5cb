"""Who can dial whom: each member of a gang says where it is, answers probes and makes them.

What a ring makes of the results is in :mod:`fiber._ring.rendezvous`, and what an mpirun does in
:func:`choose_networks`: that is told networks, and not addresses, and all its members are to be in one where
that is possible. Both ask :func:`reached_by_all`, and name pairs by :func:`unreached`.

The one that is dialled says bytes that only it has, which who dials was told over the run's own
connections: two hosts may have the same address, on a bridge that each has for itself. Who dials says
nothing, for a stranger may be there.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import platform
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fiber._base import values
from fiber._ring.forwarding import LOOPBACK, AcceptThread
from fiber._ring.model import Host
from fiber._ring.protocol import Address, Hello, ProbeResult, ProbeTarget
from fiber._runtime import runtime
from fiber.exceptions import FiberError

#: open connections of one probe
_MAX_CONNECTIONS = 64
#: length of a proof in bytes
PROOF_SIZE = 16
#: pairs that an error message names
_NAMED = 3


def this_host() -> Host:
    """Return this host with a key that differs for other boots and network namespaces."""
    name = platform.node()
    parts = [name]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        # processes in two network namespaces have no address in common
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return Host(name, "/".join(parts))


def this_addresses() -> tuple[Address, ...]:
    """Return this host's IPv4 addresses that are up, in the system's order."""
    import psutil

    stats = psutil.net_if_stats()
    up = {name: i for i, name in socket.if_nameindex() if name in stats and stats[name].isup}
    return tuple(
        Address(
            ip=found.address,
            interface=name,
            network=str(ipaddress.ip_network(f"{found.address}/{found.netmask}", strict=False)),
            index=up[name],
        )
        for name, all_found in psutil.net_if_addrs().items()
        for found in all_found
        if name in up and found.family is socket.AF_INET and found.netmask
    )


def best_first(
    found: Iterable[Address], parent_url: str = "", *, same_host: bool = False
) -> tuple[Address, ...]:
    """Return a host's addresses, the one towards its parent first and loopback last.

    Args:
        found: all of its addresses.
        parent_url: URL at which its parent process listens; may name no host.
        same_host: True where all members there will ever be are on this host: loopback alone, so
            that nothing which they open is reached from the network.
    """
    route = _local_address_to(parent_url)

    def order(one: Address) -> tuple[bool, ...]:
        ip = ipaddress.ip_address(one.ip)
        return ip.is_loopback, ip.is_link_local, one.ip != route

    ordered = sorted(found, key=order)
    return tuple(one for one in ordered if order(one)[0] or not same_host)


def _local_address_to(url: str) -> str:
    """Return the local address from which a URL's host is reached; empty if there is none."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return ""
    if not host:
        return ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setblocking(True)
        # sends nothing: the system only chooses a route
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return ""


class ProbeListener:
    """Sends a fixed answer to every connection, on a thread of its own, until closed.

    Args:
        listener: the listening socket, which is closed with this object.
        answer: the bytes to send.
    """

    def __init__(self, listener: socket.socket, answer: bytes) -> None:
        self._answer = answer
        self._accepting = AcceptThread(listener, self._serve, name="fiber-ring-probe")

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(self._answer)

    def close(self) -> None:
        """Stop listening."""
        self._accepting.close()


class Presence:
    """A member's greeting, and its answers to those that probe it, on a thread until closed.

    Args:
        listen: returns a socket that listens at an address; all interfaces if that is empty.
    """

    def __init__(self, listen: Callable[[str], socket.socket]) -> None:
        current = runtime.current()
        same_host = current.info.capabilities.same_host
        self._addresses = best_first(this_addresses(), current.parent_url, same_host=same_host)
        self._proof = secrets.token_bytes(PROOF_SIZE)
        # listens before the port is announced
        listener = listen(LOOPBACK if same_host else "")
        self._port: int = listener.getsockname()[1]
        self._answering = ProbeListener(listener, self._proof)

    def hello(self, folder: str = "") -> Hello:
        """Return the greeting of this process, with its private folder if it has one."""
        return Hello(
            host=this_host(),
            pid=os.getpid(),
            addresses=self._addresses,
            port=self._port,
            proof=self._proof,
            folder=folder,
        )

    def close(self) -> None:
        """Answer no more. Idempotent."""
        self._answering.close()


def is_loopback(address: Address) -> bool:
    """True for an address that other hosts have too."""
    return address.ip.startswith("127.")


def target_of(index: int | str, hello: Hello, addresses: Iterable[Address]) -> ProbeTarget:
    """Return a member as others dial it, at some of its addresses."""
    return ProbeTarget(index, tuple(one.ip for one in addresses), hello.port, hello.proof)


def reached_by_all(
    index: int | str, addresses: Iterable[Address], results: Collection[ProbeResult]
) -> list[Address]:
    """Return those addresses of a member at which all that dialled it reached it.

    Args:
        index: key of the member in the results.
        addresses: those that can be used.
        results: of the members that dialled it.
    """
    return [
        one for one in addresses if all(one.ip in found.reached.get(index, ()) for found in results)
    ]


def unreached(pairs: Sequence[tuple[str, Hello, str, Hello, ProbeResult, int | str]]) -> str:
    """Return a text that names the first of the pairs of which one does not reach the other.

    Args:
        pairs: name and greeting of both, the result of the one that dialled, the other's key there.
    """
    listed = "; ".join(
        f"{dialler} ({here.host.name}) cannot reach {name} ({there.host.name}) at port {there.port}: "
        f"{result.failures.get(index) or _all_of(there)}"
        for dialler, here, name, there, result, index in pairs[:_NAMED]
    )
    return listed + (f"; and {len(pairs) - _NAMED} more pairs" if len(pairs) > _NAMED else "")


def _all_of(hello: Hello) -> str:
    known = [one.ip for one in hello.addresses if not is_loopback(one)]
    return f"it has {', '.join(known) or 'no address'}"


@values.define(eq=False)
class _Dial:
    target: ProbeTarget
    ip: str
    socket: socket.socket
    got: bytes = b""


def probe(targets: Iterable[ProbeTarget], timeout: float, rest: float) -> ProbeResult:
    """Dial all addresses of all targets, many at once.

    Args:
        targets: members to dial.
        timeout: seconds for the whole probe.
        rest: seconds for further answers, once an address of each target has answered.
    """
    targets = list(targets)
    # each target's best address first
    most = max((len(target.ips) for target in targets), default=0)
    waiting = [
        (target, target.ips[position])
        for position in reversed(range(most))
        for target in reversed(targets)
        if position < len(target.ips)
    ]
    answered: dict[int | str, list[str]] = {target.index: [] for target in targets}
    failures: dict[int | str, str] = {}
    is_enough, end = False, time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        while (waiting or selector.get_map()) and time.monotonic() < end:
            while waiting and len(selector.get_map()) < _MAX_CONNECTIONS:
                _start_dial(selector, *waiting.pop(), failures)
            if not selector.get_map():
                break
            for key, events in selector.select(max(0.0, end - time.monotonic())):
                dial: _Dial = key.data
                outcome = _advance(selector, dial, events)
                if outcome is None:
                    continue
                selector.unregister(dial.socket)
                dial.socket.close()
                if outcome == "" and dial.got == dial.target.proof:
                    answered[dial.target.index].append(dial.ip)
                else:
                    what = outcome or "another process answers there"
                    failures[dial.target.index] = f"{dial.ip}: {what}"
            if not is_enough and all(answered.values()):
                is_enough, end = True, min(end, time.monotonic() + rest)
        for key in list(selector.get_map().values()):
            dial = key.data
            failures.setdefault(dial.target.index, f"{dial.ip}: no answer within {timeout:g} s")
            dial.socket.close()
    order = {target.index: target.ips for target in targets}
    return ProbeResult(
        {index: tuple(sorted(found, key=order[index].index)) for index, found in answered.items()},
        failures,
    )


def _start_dial(
    selector: selectors.BaseSelector, target: ProbeTarget, ip: str, failures: dict[int | str, str]
) -> None:
    dialling = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    dialling.setblocking(False)
    code = dialling.connect_ex((ip, target.port))
    if code not in (0, errno.EINPROGRESS):
        dialling.close()
        failures[target.index] = f"{ip}: {os.strerror(code)}"
        return
    dial = _Dial(target, ip, dialling)
    selector.register(dialling, selectors.EVENT_WRITE | selectors.EVENT_READ, dial)


def _advance(selector: selectors.BaseSelector, dial: _Dial, events: int) -> str | None:
    """Advance a connection: None while it is open, empty once a proof has come, else the error."""
    code = dial.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        return os.strerror(code)
    if not events & selectors.EVENT_READ:
        selector.modify(dial.socket, selectors.EVENT_READ, dial)
        return None
    try:
        part = dial.socket.recv(PROOF_SIZE - len(dial.got))
    except BlockingIOError:
        return None
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    dial.got += part
    if len(dial.got) >= PROOF_SIZE:
        return ""
    return None if part else "it hung up"


#: most members that each one of an mpirun dials: its next ones, in the order of names
_MOST_DIALS = 64
#: members without an address that one message lists
_LACKING = 5


@values.frozen
class Networks:
    """Networks that the members of a run share."""

    #: address at which the others reach a member, by its name
    chosen: Mapping[str, Address]
    #: True where all members are on one host
    one_host: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The networks, as ``10.0.0.0/16``."""
        return tuple(dict.fromkeys(found.network for found in self.chosen.values()))


def probe_targets(name: str, hellos: Mapping[str, Hello]) -> tuple[ProbeTarget, ...]:
    """Return the targets of a member, by their names.

    Args:
        name: the member's.
        hellos: greetings of the members, by name, the launcher first.
    """
    return tuple(
        target_of(other, hellos[other], hellos[other].addresses)
        for other in _asked(name, list(hellos))
    )


def _asked(name: str, names: Sequence[str]) -> list[str]:
    index = names.index(name)
    # the first one is the launcher, which all members connect to
    others = [
        names[(index + step) % len(names)] for step in range(1, min(len(names), _MOST_DIALS + 1))
    ]
    if name != names[0] and names[0] not in others:
        others.append(names[0])
    return others


def choose_networks(hellos: Mapping[str, Hello], dialled: Mapping[str, ProbeResult]) -> Networks:
    """Choose networks in which all members reach each other.

    Args:
        hellos: greetings of the members, by name, the launcher first.
        dialled: results of the members' probes, by name.

    Raises:
        FiberError: two members cannot reach each other; the text has names, addresses and port.
    """
    asked = {asker: _asked(asker, list(hellos)) for asker in hellos}
    _refuse_unreached(hellos, asked, dialled)
    usable = {
        name: reached_by_all(
            name,
            up.addresses,
            [dialled[asker] for asker, names in asked.items() if asker != name and name in names],
        )
        for name, up in hellos.items()
    }
    loopback = {name: [a for a in found if is_loopback(a)] for name, found in usable.items()}
    if all(loopback.values()):
        return Networks({name: found[0] for name, found in loopback.items()}, one_host=True)
    wide = {name: [a for a in found if not is_loopback(a)] for name, found in usable.items()}
    first = next(iter(hellos))
    for candidate in wide[first]:
        within = {
            name: [a for a in found if a.network == candidate.network]
            for name, found in wide.items()
        }
        if all(within.values()):
            return Networks({name: found[0] for name, found in within.items()}, one_host=False)
    # hosts in networks of their own, with routes between them
    chosen = {name: found[0] for name, found in wide.items() if found}
    missing = [name for name in hellos if name not in chosen]
    if missing:
        msg = f"{', '.join(missing[:_LACKING])} has no address that all other members reach"
        raise FiberError(msg)
    return Networks(chosen, one_host=False)


def _refuse_unreached(
    hellos: Mapping[str, Hello],
    asked: Mapping[str, Collection[str]],
    dialled: Mapping[str, ProbeResult],
) -> None:
    wrong = [
        (asker, hellos[asker], other, hellos[other], dialled[asker], other)
        for asker, names in asked.items()
        for other in names
        if not dialled[asker].reached[other]
    ]
    if wrong:
        msg = f"{unreached(wrong)}; MPI needs any port open between all members; open them, or their network"
        raise FiberError(msg)
