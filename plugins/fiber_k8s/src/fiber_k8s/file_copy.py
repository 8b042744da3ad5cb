"""Copies of files to and from claims and pods: a tar archive through exec.

A claim is mounted by a temporary pod. Jobs' images have Python, so no tar is needed in them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import secrets
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fiber.abc import Backend
from fiber.backend_parts.archive import name_of, parse_places, unpack
from fiber.exceptions import BackendError
from fiber.model import Job, JobSpec, JobState, Volume
from fiber_k8s.client import ApiError, Client
from fiber_k8s.pod_exec import execute

log = logging.getLogger("fiber")

#: mount path of a claim
_MOUNT = "/volume"
#: a temporary pod ends by itself
_MAX_HOURS = 24
_WAIT = f"import time; time.sleep({_MAX_HOURS * 3600})"
_UNPACK = """
import os, sys, tarfile
target, name = sys.argv[1:]
if target.endswith("/") or os.path.isdir(target):
    target = os.path.join(target, name)
target = os.path.abspath(target)
os.makedirs(os.path.dirname(target), exist_ok=True)
trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    for member in archive:
        rest = member.name.partition("/")[2]
        member.name = (os.path.join(target, rest) if rest else target).lstrip("/")
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        archive.extract(member, "/", **trusted)
"""
_PACK = """
import os, sys, tarfile
path = os.path.normpath(sys.argv[1])
if not os.path.lexists(path):
    sys.exit("there is no file or folder " + path)
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(path, arcname=sys.argv[2])
"""


def copy(
    backend: Backend, client: Client, python: str, image: str | None, src: str, dst: str
) -> None:
    """Copy a file or folder.

    Args:
        backend: creates the pod that mounts a claim.
        client: the cluster.
        python: the Python of images.
        image: of that pod.
        src: a path of this host, or ``NAME:PATH`` with the name of a claim or a job's pod.
        dst: as ``src``; one of both is in the cluster.

    Raises:
        BackendError: neither is in the cluster, or both, or the source is not there.
    """
    source, target = parse_places(src, dst, "on a claim or in a pod, written NAME:PATH")
    place = source or target
    assert place is not None
    if target is not None and not Path(src).exists():
        msg = f"there is no file or folder {src}"
        raise BackendError(msg)
    with _pod(backend, client, python, image, place) as (pod, path):
        if target is not None:
            _upload(client, python, pod, Path(src), path)
        else:
            _download(client, python, pod, path, Path(dst))


@contextlib.contextmanager
def _pod(
    backend: Backend, client: Client, python: str, image: str | None, place: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the name of a running pod with the place, and the path in it."""
    name, path = place
    try:
        client.pod(name)
    except ApiError as error:
        if error.status != 404:
            raise
    else:
        yield name, path
        return
    spec = JobSpec(
        run_id=secrets.token_hex(4),
        name=f"copy-{name}",
        argv=(python, "-c", _WAIT),
        image=image,
        volumes=(Volume(source=name, path=_MOUNT),),
    )
    try:
        job = backend.submit(spec)
        _await_start(backend, job)
        inside = PurePosixPath(_MOUNT, path.lstrip("/"))
        yield job.id, f"{inside}/" if path.endswith("/") else str(inside)
    finally:
        backend.cleanup(spec.run_id)


def _await_start(backend: Backend, job: Job) -> None:
    """Wait until a job runs; what it waits for is logged as a warning.

    Raises:
        BackendError: it has ended instead, with the reason.
    """
    logged = ""
    for changed, status in backend.events(job.run_id):
        if changed.id != job.id:
            continue
        if status.state is not JobState.PENDING:
            break
        if status.message not in {"", logged}:
            logged = status.message
            log.warning("fiber: pod %s waits: %s", job.id, logged)
    (status,) = backend.status([job])
    if status.state.is_terminal:
        msg = f"{job.name} did not start: {status.message or status.reason}"
        raise BackendError(msg)


def _upload(client: Client, python: str, pod: str, src: Path, path: str) -> None:
    src = src.resolve()
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(src, arcname=src.name or "root")
        stream.seek(0)
        errors = io.BytesIO()
        code = execute(
            client,
            pod,
            [python, "-c", _UNPACK, path, src.name or "root"],
            stdin=stream,
            write=lambda _, data: _note(errors, data),
        )
    _check_code(code, errors, pod)


def _download(client: Client, python: str, pod: str, path: str, dst: Path) -> None:
    errors = io.BytesIO()
    with tempfile.TemporaryFile() as file:

        def write(where: int, data: bytes) -> None:
            if where == 1:
                file.write(data)
            else:
                _note(errors, data)

        name = name_of(path)
        code = execute(client, pod, [python, "-c", _PACK, path, name], write=write)
        _check_code(code, errors, pod)
        file.seek(0)
        unpack(file, name, dst, f"pod {pod}")


def _note(errors: io.BytesIO, data: bytes) -> None:
    if errors.tell() < 1 << 16:
        errors.write(data)


def _check_code(code: int, errors: io.BytesIO, pod: str) -> None:
    if code:
        output = errors.getvalue().decode("utf-8", "replace").strip()
        msg = f"the copy failed in pod {pod}: {output.splitlines()[-1] if output else f'exit code {code}'}"
        raise BackendError(msg)
