"""Connections between the processes of a run, and the bytes that go over them.

A process that others call has one :class:`~fiber._wire.endpoint.Endpoint`: it listens on any number
of addresses, makes a :class:`~fiber._wire.endpoint.Peer` of each process that connects and proves
that it is of the run, and hands messages to the service registered for their target. The other side
is a :class:`~fiber._wire.link.Link`: one connection, read by one thread. A
:class:`~fiber._wire.client.Client` is a link read by the reactor, with answers matched to calls. On
one host the bytes go over Unix sockets, between hosts over nng (TLS over TCP), behind one interface.

=============== =====================================================================
frames          layout of frames and object bodies, cutting and joining them; pure
handshake       id, key and TLS certificate of a run; mutual HMAC proof and version check; pure
cpace           key exchange by a guessable secret, for the handshake; pure
endpoint        Endpoint, Peer, and the protocols of services and listeners
unix            both sides of Unix sockets
nng             both sides over nng; with ``fork`` the only importer of pynng
link, client    a connection to another process's endpoint; calls over it
codec           objects to bytes: pickle, cloudpickle, exceptions with tracebacks
descriptors     limits, ownership and inspection of file descriptors
fork            what a fork by user code does to open sockets
=============== =====================================================================

Invariants:

- Nothing is unpickled, and no large frame is accepted, before both sides have proved the run's key.
- Frames of one message keep their order; a message arrives whole or not at all. What a peer sent
  before its end is delivered before the end is reported, and the end is reported once.
- A slow reader never blocks a listener: sends to a peer are queued, and over nng, which drops
  replies beyond 64 frames, at most ``WINDOW`` frames are unacknowledged. A dialer's send may block.
- After a fork by user code every socket is abandoned in the child, and its use raises ForkedError.

Threads: the reactor's (``fiber-handler``) calls services, timers and clients' callbacks; those must
not wait. Any thread may send. nng has threads of its own, on which connections are registered and
which otherwise post to the reactor (``fiber-post``); ``fiber-watch`` polls nng's TCP pipes for lost
ends and descriptors that user code has closed, and dialing over nng has a short-lived thread. Locks
are held for bookkeeping, by dialers while a frame goes out, and by ``ClientPool``, one for each
address, while it is dialled; none is held while a callback runs.

Called by the packages above it (``_tunnel``, ``_tasks``, ``_agent``, ``_launch``, ``_runtime``,
``_objects``, ``_workers``, ``_ring``); calls only ``_base`` and the contracts.
"""
