"""Managers: objects that live in a server process and are used from all others through proxies.

The same names as ``multiprocessing.managers``, and :class:`AsyncManager`, whose methods return a
handle at once. A manager's process runs a ``Server``, which makes objects of registered types and
has their methods called (``fiber._objects.managed``); proxies in other processes send the calls.

Invariants: an object lives while any process has a proxy of it, one that is on its way in a pickle
included. Inside a run a proxy talks to the server's process directly, and no address is needed;
managers of other programs connect to an address and prove that they know the authkey. The server
serves until a manager calls ``shutdown`` or is collected, or its run ends.

Threads: the server's main thread only waits; calls run on one thread for each caller. A manager has
one lock, which guards its start.

``base``: ``BaseManager``, its server, ``BaseProxy`` and proxy classes made of method names; ``sync``:
``SyncManager`` with its proxies, and ``SharedMemoryManager``; ``asynchronous``: ``AsyncManager``, apart from
``base`` because the stdlib has nothing of the kind.
"""

from __future__ import annotations

from multiprocessing.managers import Array as Array  # type: ignore[attr-defined] # the stubs do not tell
from multiprocessing.managers import Namespace as Namespace
from multiprocessing.managers import RemoteError as RemoteError
from multiprocessing.managers import State as State  # type: ignore[attr-defined] # as above
from multiprocessing.managers import Value as Value  # type: ignore[attr-defined] # as above

from fiber.managers.asynchronous import AsyncAutoProxy as AsyncAutoProxy
from fiber.managers.asynchronous import AsyncHandle, AsyncManager, AsyncProxy, gather
from fiber.managers.asynchronous import MakeAsyncProxyType as MakeAsyncProxyType
from fiber.managers.base import AutoProxy as AutoProxy
from fiber.managers.base import BaseManager, BaseProxy, Token
from fiber.managers.base import MakeProxyType as MakeProxyType
from fiber.managers.base import RebuildProxy as RebuildProxy
from fiber.managers.base import Server as Server
from fiber.managers.sync import AcquirerProxy as AcquirerProxy
from fiber.managers.sync import ArrayProxy as ArrayProxy
from fiber.managers.sync import BarrierProxy as BarrierProxy
from fiber.managers.sync import BaseListProxy as BaseListProxy
from fiber.managers.sync import BasePoolProxy as BasePoolProxy
from fiber.managers.sync import ConditionProxy as ConditionProxy
from fiber.managers.sync import DictProxy as DictProxy
from fiber.managers.sync import EventProxy as EventProxy
from fiber.managers.sync import IteratorProxy as IteratorProxy
from fiber.managers.sync import ListProxy as ListProxy
from fiber.managers.sync import NamespaceProxy as NamespaceProxy
from fiber.managers.sync import PoolProxy as PoolProxy
from fiber.managers.sync import SetProxy as SetProxy
from fiber.managers.sync import SharedMemoryManager, SyncManager
from fiber.managers.sync import ValueProxy as ValueProxy

__all__ = [
    "AsyncHandle",
    "AsyncManager",
    "AsyncProxy",
    "BaseManager",
    "BaseProxy",
    "SharedMemoryManager",
    "SyncManager",
    "Token",
    "gather",
]
