"""Where a process listens for its children: what the hook answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fiber.model import Interface, ListenAddress, Peers

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime


def choose_address(runtime: Runtime) -> ListenAddress:
    """Ask ``fiber_listen_address``; interfaces are read only where others than this host dial."""
    same_host = runtime.info.capabilities.same_host
    ask = runtime.info.facts
    peers = Peers(
        same_host=same_host,
        directory=str(runtime.directory),
        name=runtime.ident,
        config=runtime.config.settings,
        environ=dict(os.environ),
        facts=None if ask is None else ask(runtime.config.settings, os.environ),
    )
    found: tuple[Interface, ...] = ()
    if not same_host:
        from fiber._wire.interfaces import interfaces

        found = interfaces()
    address: ListenAddress = runtime.plugins.hook.fiber_listen_address(
        backend=runtime.info.name, peers=peers, interfaces=found
    )
    return address
