"""Connections carried over byte streams that only one of two sides can open.

The *hub* is the process with the platform: it can open streams into jobs, and nobody there can dial
it. In each job a *landing* takes connections of the job's processes and hands each to a stream that
the hub keeps open for it; the other way round the hub opens a stream for each connection into a job.
Who talks at the two ends notices nothing: TLS and the proof of the key stay between them.

=========== =======================================================================
routes      how an address behind a hub is written
greeting    the first lines of a stream, proved by the run's key; pure
session     a connection's bytes in order and once, over streams that break; pure
buffered    a socket that never blocks, on a reactor
opening     opens streams into jobs, and greets whoever is at their ends
crossing    joins a connection to its session and to the stream of the moment
ports       a port on loopback for each address behind the hub
shore       a job as the hub sees it
probe       measures a stream
hub         the side that opens streams
landing     the side into which they are opened
=========== =======================================================================
"""
