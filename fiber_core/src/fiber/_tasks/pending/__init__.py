"""The pending table: which worker gets which items, and what runs again when workers die or stall.

A pure state machine. :meth:`PendingTable.handle` takes an event and the time and returns commands;
:meth:`PendingTable.next_deadline` says when a ``Tick`` must come. It has no clock, thread, lock or
socket: the dispatcher owns one, calls it under its lock and carries the commands out in order.

Invariants: each item of a call that was not dropped ends in exactly one ``Accept``, ``Abandon`` or
``Withdraw``, then one ``CallDone`` follows; an entry is dispatched only against a credit; a worker
holds at most two entries; a report that contradicts what its worker was given raises ``WireError``
and changes nothing; an event costs the same however many items and workers there are.

events          events in, commands out, and the words *call*, *unit*, *entry*
table           what each event means; assignment and revoking
ledger          calls, workers and entries, and the changes that keep them consistent; fair queue
call_state      one call: ranges of items that wait
worker_state    one worker: the entries it holds; workers that can take one more
stragglers      deadlines of slow units and of revokes; items that several workers hold
batching        how many units one entry gets
policy, views, ranges   limits; read-only views; sets of ranges

``docs/design/pending-table.md`` explains the rules.
"""

from fiber._tasks.pending.events import (
    Abandon,
    Accept,
    CallAdded,
    CallDone,
    CallDropped,
    Command,
    Dispatch,
    Event,
    ItemsAdded,
    ItemsWithdrawn,
    Requeue,
    Retire,
    Revoke,
    RevokeAnswered,
    SizeObserved,
    Tick,
    UnitsDone,
    Withdraw,
    WorkerAsked,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from fiber._tasks.pending.policy import BatchPolicy, RetryPolicy, RevokePolicy
from fiber._tasks.pending.table import PendingTable
from fiber._tasks.pending.views import CallView, HeldView, Snapshot, WorkerView

__all__ = [
    "Abandon",
    "Accept",
    "BatchPolicy",
    "CallAdded",
    "CallDone",
    "CallDropped",
    "CallView",
    "Command",
    "Dispatch",
    "Event",
    "HeldView",
    "ItemsAdded",
    "ItemsWithdrawn",
    "PendingTable",
    "Requeue",
    "Retire",
    "RetryPolicy",
    "Revoke",
    "RevokeAnswered",
    "RevokePolicy",
    "SizeObserved",
    "Snapshot",
    "Tick",
    "UnitsDone",
    "Withdraw",
    "WorkerAsked",
    "WorkerDraining",
    "WorkerJoined",
    "WorkerLost",
    "WorkerView",
]
