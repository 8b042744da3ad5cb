"""``Backend.copy``: files to and from volumes, through a container that is never started."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fiber.backend_parts.archive import name_of, parse_places, unpack
from fiber.exceptions import BackendError
from fiber_docker.client import Client
from fiber_docker.container import unique_name

_MOUNT = "/volume"


def copy(client: Client, src: str, dst: str) -> None:
    """Copy a file or folder to or from a volume.

    Args:
        client: the engine.
        src: a path of this host, or ``volume:path``.
        dst: as ``src``; one of both is on a volume.

    Raises:
        BackendError: neither is on a volume, or both, or the source is not there.
    """
    source, target = parse_places(src, dst, "on a volume, written VOLUME:PATH")
    if target is not None:
        with _mounted(client, target[0]) as container:
            _upload(client, container, Path(src), PurePosixPath(_MOUNT, target[1].lstrip("/")))
    elif source is not None:
        with _mounted(client, source[0]) as container:
            _download(client, container, PurePosixPath(_MOUNT, source[1].lstrip("/")), Path(dst))


@contextlib.contextmanager
def _mounted(client: Client, volume: str) -> Iterator[str]:
    image = _any_image(client)
    mount = {"Type": "volume", "Source": volume, "Target": _MOUNT}
    body = {"Image": image, "Cmd": ["copy"], "HostConfig": {"Mounts": [mount]}}
    container = client.create(unique_name("00000000", "copy"), body)
    try:
        yield container
    finally:
        # not with its volumes: the one that was made by a name stays in any case
        client.remove(container)


def _any_image(client: Client) -> str:
    found = client.call("list images", lambda api: api.images(quiet=True))
    if not found:
        msg = "the Docker engine has no image at all, and one is needed to reach a volume"
        raise BackendError(msg)
    return str(found[0])


def _upload(client: Client, container: str, src: Path, dst: PurePosixPath) -> None:
    if not src.exists():
        msg = f"there is no file or folder {src}"
        raise BackendError(msg)
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            # the engine makes no folders on the way
            for parent in reversed(dst.relative_to(_MOUNT).parents):
                if parent.name:
                    folder = tarfile.TarInfo(str(parent))
                    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(folder)
            name = str(dst.relative_to(_MOUNT))
            archive.add(src, arcname=src.name if name == "." else name)
        stream.seek(0)
        client.put(container, _MOUNT, stream)


def _download(client: Client, container: str, src: PurePosixPath, dst: Path) -> None:
    with tempfile.TemporaryFile() as file:
        try:
            for chunk in client.get(container, str(src)):
                file.write(chunk)
        except FileNotFoundError as error:
            msg = f"there is no {src.relative_to(_MOUNT)} on that volume"
            raise BackendError(msg) from error
        file.seek(0)
        unpack(file, name_of(str(src)), dst, "the volume")
