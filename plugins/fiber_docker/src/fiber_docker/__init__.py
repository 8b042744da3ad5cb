"""The Docker backend: each job is a container of one engine, Docker's or Podman's.

Invariants:

- No container is left. Each is either in the records of the process that created it, which removes
  it at its end, or carries labels by which the next run of the same user removes it once its master
  is proven to be dead. Processes of Fiber's have ``AutoRemove``.
- No user's program is process 1 of its container: Fiber's supervisor is, or a small first process
  which passes signals on and writes down how the program ended (except in images without Python).
- Changes come from one stream of events a run, which is opened before the containers are listed.
  So nothing is missed, and the engine is not asked while nothing happens.
- Failing to reach the engine is an exception, never a status.
- A run's secrets go to standard input after the start: they are in no argument, variable or label.

Threads: one a run for events (``fiber-docker-events``); eight that start and remove containers
(``fiber-docker-N``) and four that create them (``fiber-docker-create-N``); one for each container
with forwarded output (``fiber-docker-output``) or under termination (``fiber-docker-grace``).
Locks: the starter's (records of jobs), the devices' (held during a probe), the images' (held during
a pull), the client's (held while it connects), one for writing output. The client's may be taken
under the devices' or the images'; no other one is taken under another.

Called by the core through :class:`fiber.abc.Backend`, the hooks in :mod:`~fiber_docker.plugin`, and
``fiber doctor``; fiber_k8s builds images with ``client``, ``config`` and ``images``. It calls the
Docker SDK, and ``fiber.backend_parts`` (status feed, threads, first process, liveness of masters)
and ``fiber._agent`` (device allocation and probes, lines of output).

================================  ==========================================================
plugin, config, backend           hooks and settings; the Backend interface
endpoint, client, stream          which engine; calls of its API; attached streams
container, jobs                   specification of a container; creating, starting, ending, removing
watch, status                     events; statuses from them and from inspected containers
orphans                           containers of dead masters
output, files                     output of jobs, ``Backend.exec``; ``Backend.copy``
images, devices                   pulling, building, pushing; GPUs and the like
network, address                  facts of the engine's network; listen address (pure)
checks                            ``fiber doctor``
================================  ==========================================================

Modules that one other module imports are apart where they have a thread of their own (``watch``), need
nothing of the backend (``files``), or are imported only when they are used (``checks``).
"""
