"""Tunnel: connections of a job carried over byte streams that only the submitting side can open.

For jobs that cannot dial the process that submitted them (``kubectl exec``, ssh). The client
(:mod:`~fiber._tunnel.hub`) is in the process that has the platform: it keeps a few streams open into
each job. The server (:mod:`~fiber._tunnel.landing`) in the job accepts connections of the job's
processes and joins each to an idle stream; in the other direction the client opens a stream for each
connection into the job. The endpoints of a connection notice nothing: TLS and the handshake of
:mod:`fiber._wire` run end to end through it.

=========== =======================================================================
routes      how an address behind a tunnel is written
greeting    handshake of a stream: lines of text, proved by the run's key; pure
crossing    a tunnelled connection: its bytes in order and once, over streams that break
buffered    non-blocking socket with buffers, on a reactor
ports       a loopback port for each address behind a tunnel
shore       a job as the client sees it
hub         client: opens streams
landing     server: streams are opened into it
=========== =======================================================================

Each side runs on a reactor and shares its thread; opening of streams, which blocks, has threads of
its own. A break of a stream loses nothing: a connection resumes on the next stream from the
acknowledged byte. Called by ``_launch``, ``_agent`` and ``_objects``; calls ``_wire``.
"""
