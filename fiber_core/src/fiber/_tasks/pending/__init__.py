"""What becomes of work while workers come, run, stall and die: pure state, the clock is passed in."""

from fiber._tasks.pending.commands import (
    Abandon,
    Accept,
    CallDone,
    Dispatch,
    Instruction,
    Requeue,
    Retire,
    Revoke,
    Withdraw,
)
from fiber._tasks.pending.events import (
    CallAdded,
    CallDropped,
    Event,
    ItemsAdded,
    ItemsWithdrawn,
    RevokeAnswered,
    SizeObserved,
    Tick,
    UnitsDone,
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
    "Dispatch",
    "Event",
    "HeldView",
    "Instruction",
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
