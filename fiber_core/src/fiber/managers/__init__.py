"""Objects in a process of their own that are used from all others, through proxies."""

from __future__ import annotations

from fiber.managers.base import BaseManager, State
from fiber.managers.proxies import AutoProxy, BaseProxy, MakeProxyType, RebuildProxy, Token
from fiber.managers.server import Server
from fiber.managers.standard import (
    AcquirerProxy,
    Array,
    ArrayProxy,
    BarrierProxy,
    BaseListProxy,
    BasePoolProxy,
    ConditionProxy,
    DictProxy,
    EventProxy,
    IteratorProxy,
    ListProxy,
    Namespace,
    NamespaceProxy,
    PoolProxy,
    SetProxy,
    Value,
    ValueProxy,
)
from fiber.managers.sync import Manager, SyncManager

__all__ = [
    "AcquirerProxy",
    "Array",
    "ArrayProxy",
    "AutoProxy",
    "BarrierProxy",
    "BaseListProxy",
    "BaseManager",
    "BasePoolProxy",
    "BaseProxy",
    "ConditionProxy",
    "DictProxy",
    "EventProxy",
    "IteratorProxy",
    "ListProxy",
    "MakeProxyType",
    "Manager",
    "Namespace",
    "NamespaceProxy",
    "PoolProxy",
    "RebuildProxy",
    "Server",
    "SetProxy",
    "State",
    "SyncManager",
    "Token",
    "Value",
    "ValueProxy",
]
