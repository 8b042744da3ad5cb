"""The pending table: which worker gets which items, and what runs again when workers die or stall.

A pure state machine. :meth:`PendingTable.handle` takes an event and the time and returns commands;
:meth:`PendingTable.next_deadline` says when a ``Tick`` must come. It has no clock, thread, lock or
socket: the dispatcher owns one, calls it under its lock and carries the commands out in order.

Invariants: each item of a call that was not dropped ends in exactly one ``Accept``, ``Abandon`` or
``Withdraw``, then one ``CallDone`` follows; an entry is dispatched only against a credit; a worker
holds entries for at most two credits; a report that contradicts what its worker was given raises ``WireError``
and changes nothing; an event costs the same however many items and workers there are.

events   events in, commands out, limits, and the words *call*, *unit*, *entry*
table    what each event means; assignment, revoking, and the ledger that keeps the state consistent
state    calls, workers and entries, and views of them; sizes of entries; slow units and items that several workers hold

``docs/design/pending-table.md`` explains the rules.
"""
