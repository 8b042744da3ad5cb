"""Parts of backends: what a plugin takes from the core besides contracts and values.

The core uses some of them itself.

* ``address``: where a process listens whose peers are on other hosts, behind mutual TLS.
* ``feed``: :class:`~fiber.backend_parts.feed.Feed`, the latest status of each job and streams of
  changes, which is what ``Backend.events``, ``status`` and waiting are made of. Statuses only move
  forward; each end is delivered once.
* ``first``: program that is process 1 of a container whose command is not Fiber's; it writes how
  that ended.
* ``liveness``: whether the owner of a folder, container or control group lives, with proofs; the
  rule of all sweeps.
* ``archive``: writes one file or folder out of a tar archive that a job or volume sent, and nothing
  else.
* ``batch``: what backends of batch systems are made of, a package of its own.
* ``bridge``: program that joins standard input and output to a port or socket in a job, for
  platforms that run programs beside a job and forward no port.
* ``logfile``: reads the lines of a log that still grows.
* ``outage``: how long a platform that cannot be asked is asked again, and when users are told.
* ``private``: how a program that a platform starts finds its private instructions, and ``seal``.
* ``privileges``: Linux capabilities that processes in containers do without, and which jobs do.
* ``threads``: :class:`~fiber.backend_parts.threads.ThreadPool`, which makes a platform's slow
  calls.

``first`` and ``liveness`` need the standard library alone, for they are sent to hosts without
Fiber. ``Feed`` has one condition and no thread; ``ThreadPool`` has one lock and threads named
``fiber-BACKEND-NUMBER``.
"""
