"""Observation of a run: progress, status, traces, metrics, spans, breakpoints.

:func:`status.collect` describes the pools and processes of a program, from what they record anyway; the
program's status socket (:mod:`fiber._runtime.inspection`) sends it to ``fiber top`` and dashboards. A
:class:`progress.Watch` stands between a call and the sink of its results. It counts results and shows the
progress on a thread of its own; the call neither waits for that thread nor fails with it.

Invariants: a program that uses none of this imports nothing of this package and counts nothing; if showing
something fails, the tasks continue; the dispatcher's lock is held for counting only.

progress      progress of one call: counted, and shown until its end
status        status, timeline and logs of a run: of this program, or asked for at another one
trace         timeline of all pools, written to a file
metrics       statuses as metrics of Prometheus
spans         one span of OpenTelemetry for each task
debugger      prompt of a stopped worker, on the program's terminal
"""
