"""Takes the files that jobs of a run are to find: by content, kept from run to run."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from fiber.backend_parts.liveness import Liveness, lock, sweep
from fiber.backend_parts.standard_streams import write_all
from fiber_ssh.remote.wire import Data, Message, decoder

#: seconds after which content that no run has asked for is removed
_UNUSED = 30 * 24 * 3600.0
_PIECE = 1 << 20


def receive_files(root: str) -> None:
    """Talk to a sender on stdin and stdout until all files are in their folder."""
    store = os.path.join(root, "files")
    os.makedirs(store, mode=0o700, exist_ok=True)
    with open(os.path.join(root, "files.lock"), "ab") as users:
        _sweep(store, users.fileno())
        with contextlib.suppress(OSError):
            # where there are no locks nothing is removed
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            _receive_files(root, store)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            sys.exit(f"they cannot be kept there: {error.strerror or error}{where}")


def _receive_files(root: str, store: str) -> None:
    said = _said()
    order = _message(next(said))
    folder = os.path.expanduser(order["folder"] or os.path.join(root, "runs", order["run"], "work"))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    files: list[list[Any]] = order["files"]
    missing = list(dict.fromkeys(f[2] for f in files if not _has(store, f[2])))
    _say({"missing": missing})
    _receive(store, missing, said)
    _say({"folder": folder, "placed": _place(store, folder, files)})


def _said() -> Iterator[Message | Data]:
    decoding = decoder()
    while data := os.read(0, _PIECE):
        decoding.feed(data)
        yield from decoding.messages()


def _message(found: Message | Data) -> Message:
    if isinstance(found, Data):
        sys.exit("output came where an order was expected")
    return found


def _say(message: Message) -> None:
    write_all(1, json.dumps(message).encode() + b"\n")


def _has(store: str, digest: str) -> bool:
    try:
        # it is in use
        os.utime(os.path.join(store, digest))
    except FileNotFoundError:
        return False
    return True


def _sweep(store: str, users: int) -> None:
    """Remove content that no run has asked for in a long time, while nobody takes any."""
    oldest = time.time() - _UNUSED
    try:
        is_idle = lock(users)
    except OSError:
        is_idle = False

    def liveness_of(path: str) -> Liveness:
        is_old = os.stat(path).st_mtime < oldest
        return Liveness.DEAD if is_idle and is_old else Liveness.UNKNOWN

    def remove(path: str) -> bool:
        os.unlink(path)
        return True

    if is_idle:
        sweep([os.path.join(store, name) for name in os.listdir(store)], liveness_of, remove)


def _receive(store: str, missing: list[str], said: Iterator[Message | Data]) -> None:
    for number, digest in enumerate(missing):
        new = os.path.join(store, f"{digest}.{os.getpid()}")
        try:
            with open(new, "wb") as file:
                found = _fill(file, number, said)
            if found != digest:
                sys.exit(f"a file changed while it was sent: its digest is {found}, not {digest}")
            os.replace(new, os.path.join(store, digest))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)


def _fill(file: BinaryIO, number: int, said: Iterator[Message | Data]) -> str:
    digest = hashlib.sha256()
    for piece in said:
        if not isinstance(piece, Data):
            return digest.hexdigest()
        if piece.number != number:
            sys.exit(f"a piece of file {piece.number} came in file {number}")
        digest.update(piece.content)
        file.write(piece.content)
    sys.exit("the sender went away")


def _place(store: str, folder: str, files: list[list[Any]]) -> int:
    """Put what is not there yet, or not the same, into the folder; how many that were."""
    index = os.path.join(folder, ".fiber-files.json")
    try:
        with open(index, encoding="utf-8") as file:
            known: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        known = {}
    placed = 0
    for path, mode, digest in files:
        if os.path.isabs(path) or ".." in path.split("/"):
            sys.exit(f"{path!r} lies outside of the working directory")
        target = os.path.join(folder, path)
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(target)
            if known.get(path) == [digest, status.st_size, status.st_mtime_ns]:
                continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        new = f"{target}.{os.getpid()}"
        shutil.copyfile(os.path.join(store, digest), new)
        os.chmod(new, mode)
        os.replace(new, target)
        status = os.stat(target)
        known[path] = [digest, status.st_size, status.st_mtime_ns]
        placed += 1
    with open(f"{index}.{os.getpid()}", "w", encoding="utf-8") as file:
        json.dump(known, file)
    os.replace(f"{index}.{os.getpid()}", index)
    return placed
