"""Settings of the Docker backend, and the durations that it waits for."""

from __future__ import annotations

from typing import Literal

from fiber._base import values
from fiber.backend_parts.containers import named
from fiber.model import Durations


@values.frozen(kw_only=True)
class DockerConfig:
    """Settings by ``FIBER_DOCKER_<KEY>`` or the section ``[docker]``."""

    #: the engine, as in ``DOCKER_HOST``; else what the docker command itself would use
    host: str | None = None
    #: a context of the docker command; else the current one
    context: str | None = None
    #: network that jobs join; else the master's own where it is in a container, else the bridge
    network: str | None = None
    #: address of this host that jobs dial; else it is found
    address: str | None = None
    #: the Python of the image
    python: str = "python3"
    #: when images are pulled
    pull: Literal["missing", "always", "never"] = "missing"
    #: user of the job, ``name`` or ``uid:gid``; else the image's
    user: str | None = None
    #: what containers do without: ``reduced`` for those of processes (more privileges than they begin
    #: with, rare capabilities), ``restricted`` for all (every capability), ``image`` nothing
    security: Literal["reduced", "restricted", "image"] = "reduced"
    #: working directory; else the image's
    workdir: str | None = None
    #: size of /dev/shm in MB; else the engine's own
    shm_size: int | None = values.field(default=None, validator=values.optional(values.gt(0)))
    #: ``SOURCE:PATH`` or ``SOURCE:PATH:ro``, mounted into every job
    volumes: tuple[str, ...] = values.field(default=(), validator=named(":"))
    #: ``NAME:ADDRESS``, added to every job's hosts file
    extra_hosts: tuple[str, ...] = values.field(default=(), validator=named(":"))
    #: ``NAME=VALUE``, put on every container
    labels: tuple[str, ...] = values.field(default=(), validator=named("="))
    #: registry and folder that built images are pushed to, for engines that do not build themselves
    registry: str | None = values.field(
        default=None,
        metadata={
            "option": "--docker-registry",
            "help": "registry that a built image is pushed to, HOST/FOLDER",
            "commands": ("run",),
        },
    )
    #: which jobs get the engine's own socket: none, programs that ``fiber run`` starts, so that what
    #: they start are containers too, or all; whoever has it is root of the engine's machine
    share_engine: Literal["programs", "all", "none"] = values.field(
        default="none",
        metadata={
            "option": "--share-engine",
            "help": "none, or programs: this one gets the engine's socket, can start containers, "
            "and so is root of the engine's machine",
            "commands": ("run",),
        },
    )


@values.frozen(kw_only=True)
class DockerTiming(Durations):
    """Durations in seconds that the Docker backend waits for, besides the core's."""

    #: for the engine to answer a call
    answer: float = 60.0
    #: for a removal that is under way already
    removal: float = 10.0
    #: between the SIGTERM and the SIGKILL of ``docker stop``, and of an engine that ends; the engine
    #: takes whole seconds
    stop: float = 10.0
    #: from the SIGTERM to the SIGKILL of an attached program whose starter was killed
    orphan: float = 5.0
    #: for the event of the end of a container that is gone already
    end_event: float = 2.0
    #: for output to arrive once its container is removed
    output: float = 2.0
    #: for last lines where a status waits for them and this process blocks on writing them
    log_tail: float = 0.5
    #: likewise where the engine is slow; it reports an end after all output
    late_output: float = 5.0
    #: between two checks whether a container's first process handles signals yet
    handler_check: float = 0.05
    #: between two tries to reach an engine that is gone
    retry: float = 0.5
    #: for the thread that reads events to end
    watch_end: float = 5.0
