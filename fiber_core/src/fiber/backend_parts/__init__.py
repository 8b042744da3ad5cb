"""Building blocks for backends, shared by plugins; the core uses some of them itself.

* ``address``: address at which a process listens for peers on other hosts, behind mutual TLS; network
  interfaces of this host.
* ``containers``: what backends that run containers have in common.
* ``feed``: :class:`~fiber.backend_parts.feed.Feed`, the latest status of each job and streams of
  changes, for ``Backend.events``, ``Backend.status`` and waits. Statuses only move forward; each end
  is delivered once.
* ``first``: program that is process 1 of a container whose command is not Fiber's; it records how
  the command ended.
* ``liveness``: proofs that the owner of a folder, container or control group is alive or dead, and
  the rule by which sweeps remove what dead owners left.
* ``archive``: extracts one file or folder from a tar archive that a job or volume sent, and nothing
  else.
* ``batch``: package with which backends for batch systems are built.
* ``bridge``: program that joins standard input and output to a port or socket in a job, for
  platforms that run programs beside a job and forward no port.
* ``logfile``: reads the lines of a log that still grows.
* ``outage``: for how long calls are retried while a platform does not answer, and when users get a
  notice.
* ``private``: places where a program finds its private instructions, and their encryption (``seal``).
* ``standard_streams``: passes this program's standard streams on to and from programs elsewhere.
* ``threads``: :class:`~fiber.backend_parts.threads.ThreadPool`, which makes a platform's slow
  calls.
* ``watch``: :class:`~fiber.backend_parts.watch.RunWatch`, a thread that follows a platform's stream of
  changes and opens it again whenever it ends.

``first`` and ``liveness`` only need the standard library, because they are sent to hosts without
Fiber. ``Feed`` has one condition and no thread; ``ThreadPool`` has one lock and threads named
``fiber-BACKEND-NUMBER``; a watch has one thread and no lock.
"""
