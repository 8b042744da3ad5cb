"""Image of a folder: built, tagged by its content, pushed to a registry or loaded into nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from fiber.exceptions import BackendError
from fiber.images import file_of, repository_for
from fiber_k8s.building import engines
from fiber_k8s.building.cluster_registry import Cluster, detect_registry, load_command
from fiber_k8s.building.engines import EngineError, follow, print_progress
from fiber_k8s.building.registries import Registry, advice, registry
from fiber_k8s.config import K8sConfig

__all__ = ["prepare"]

_ID = 12


def prepare(
    context: str,
    config: K8sConfig,
    cluster: Callable[[], Cluster],
    progress: Callable[[str], None] = print_progress,
) -> str | None:
    """Build the image of a folder, and push it to a registry or load it into the cluster's nodes.

    Returns:
        its name; None where the folder has no Dockerfile, and in a pod where nothing can build.

    Raises:
        AmbiguousImageError: the folder has several.
        BackendError: there is no engine or registry, or a step failed; the text has what mends it.
    """
    file = file_of(context, "Dockerfile", "*.docker")
    if file is None:
        return None
    engine = engines.find_engine(config.engine, progress)
    where = cluster()
    name = repository_for(file.parent)
    if engine is None and where == Cluster() and not _has_sdk() and Path(context).is_dir():
        # in a pod, whose image was mostly made from that very folder
        progress(f"{file} is not built, for nothing here builds images: the program's own is taken")
        return None
    # before the build, so that a wrong registry is reported at once
    is_local = not config.registry and load_command(where, name) is not None
    target = None if is_local else _registry(config, where)
    if engine is None:
        image = _build_by_sdk(file, target, progress)
    else:
        progress(f"building {file} with {engine.name}")
        image_id = engine.build(file, config.platform)
        tag = image_id.rpartition(":")[2][:_ID]
        image = (
            _local_name(engine.name, name, tag) if target is None else str(target.named(name, tag))
        )
        engine.tag(image_id, image)
        if target is not None:
            progress(f"pushing {image}")
            with _push_advice(target, name, engine.name):
                engine.push(image)
    if target is None:
        _load(image, where, progress)
    return image


def _local_name(engine: str, name: str, tag: str) -> str:
    """Return an engine's name of an image without registry; others than Docker prefix a host."""
    host = "" if engine == "docker" else "localhost/"
    return f"{host}fiber-{name}:{tag}"


def _registry(config: K8sConfig, where: Cluster) -> Registry:
    return (
        registry(config.registry)
        if config.registry
        else detect_registry(where, engines.known_hosts())
    )


@contextlib.contextmanager
def _push_advice(target: Registry, name: str, engine: str) -> Iterator[None]:
    """Within, the error of a refused push says how to fix it."""
    try:
        yield
    except BackendError as error:
        output = error.output if isinstance(error, EngineError) else str(error)
        msg = f"{error}; {advice(target, name, engine, output)}"
        raise BackendError(msg) from error


def _load(image: str, where: Cluster, progress: Callable[[str], None]) -> None:
    """Bring an image to the nodes of a cluster on this host."""
    argv = load_command(where, image)
    if not argv:
        return
    if shutil.which(argv[0]) is None:
        msg = (
            f"context {where.context!r} is a cluster of {argv[0]}, and {argv[0]} is not on PATH to "
            "load images: install it, or name a registry with --docker-registry"
        )
        raise BackendError(msg)
    progress(f"loading {image} into {where.context}")
    follow(argv, f"{argv[0]} could not load {image}", progress)


def _build_by_sdk(file: Path, target: Registry | None, progress: Callable[[str], None]) -> str:
    """Build and push by the SDK of the plugin for Docker, where that is installed."""
    if not _has_sdk():
        msg = (
            f"{file} describes an image, and nothing here builds images: install one of "
            f"{', '.join(engines.ENGINES)}, or fiber-docker for an engine that is reached by its "
            "socket; or name an image that exists, with --image"
        )
        raise BackendError(msg)
    from fiber_docker.client import Client
    from fiber_docker.config import DockerConfig
    from fiber_docker.images import Images

    settings = DockerConfig(registry=None if target is None else target.prefix)
    client = Client(settings)
    with contextlib.closing(client), contextlib.ExitStack() as stack:
        if target is not None:
            stack.enter_context(_push_advice(target, repository_for(file.parent), "docker"))
        return str(Images(client, settings, progress).build(str(file)))


def _has_sdk() -> bool:
    return importlib.util.find_spec("fiber_docker") is not None
