"""Listening: a host's interfaces, the expected peers, and the address to listen at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiber._base import values


@values.frozen(kw_only=True)
class Interface:
    """Network interface of this host with one of its addresses."""

    #: the system's name, for example "eth0"
    name: str
    #: numeric IPv4 or IPv6 address
    address: str
    #: True for addresses that never leave the host
    is_loopback: bool = False
    #: True where the interface is up
    is_up: bool = True


@values.frozen(kw_only=True)
class Peers:
    """Description of the processes that will dial a listener that is about to be made."""

    #: True where every peer runs on this host and sees its file system
    same_host: bool
    #: the run directory, where sockets of this host live; socket paths stay below 100 bytes
    directory: str
    #: a name unique within the run, usable as a file name
    name: str
    #: settings of the selected backend, its own attrs value
    config: Any = None
    #: the environment of this process
    environ: Mapping[str, str] = values.field(factory=dict)
    #: facts about the platform, as returned by ``BackendInfo.facts``
    facts: Any = None


@values.frozen(kw_only=True)
class ListenAddress:
    """Address to bind, and how peers reach it."""

    #: ``unix://PATH`` (Linux) or ``ipc://PATH`` on one host, ``tls+tcp://HOST:0`` or (explicitly
    #: unsafe) ``tcp://HOST:0`` between hosts
    bind_url: str
    #: host that peers dial, where it differs from the bound one (``tls+tcp`` and ``tcp`` only)
    advertise_host: str | None = None
    #: True where jobs that cannot dial it come over streams that the backend opens into them
    #: (:meth:`fiber.abc.Backend.open_stream`); bound to loopback it can be dialled by none
    routed: bool = False
