"""What lets people see how a run goes; imported only where somebody asks.

:func:`status.collect` tells how the pools and processes of a program are, from what they know anyhow; the
program's status socket (:mod:`fiber._runtime.status_socket`) answers with it. A :class:`progress.Watch` stands between a call and the sink of its results, counts what comes, and
shows it on a thread of its own; the call neither waits for that thread nor fails with it.

Invariants: a program that asks for nothing imports nothing of this package and counts nothing;
showing something may fail, and the work goes on; the dispatcher's lock is held for counting alone.

progress      the progress of one call: counted, and shown until its end
status        the status of a run: collected here, or asked for at another program
answers       what a program answers at its status socket: status, timeline, logs
trace         a timeline of all pools, written to a file
display       where it is shown: a terminal, a notebook, lines
metrics       statuses as Prometheus reads them
spans         a span of OpenTelemetry for each task
debugger      the prompt of a worker that has stopped, on the program's terminal
"""
