"""Parts of backends that watch a platform; plugins may use them, and need not.

* ``feed``: :class:`~fiber.backend_parts.feed.Feed`, the latest status of each job and streams of
  changes, which is what ``Backend.events``, ``status`` and waiting are made of. Statuses only move
  forward; each end is delivered once.
* ``first``: program that is process 1 of a container whose command is not Fiber's; it writes how
  that ended.
* ``liveness``: whether the owner of a folder, container or control group lives, with proofs; the
  rule of all sweeps.
* ``threads``: :class:`~fiber.backend_parts.threads.ThreadPool`, which makes a platform's slow
  calls.

``first`` and ``liveness`` need the standard library alone, for they are sent to hosts without
Fiber. ``Feed`` has one condition and no thread; ``ThreadPool`` has one lock and threads named
``fiber-BACKEND-NUMBER``.
"""
