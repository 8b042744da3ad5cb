"""Import of the program's own modules in a job on another host, from the parent.

A finder before all others asks for modules by the names that the parent offers. Where this host has
the very same file, only its digest is compared; else the content comes once to each job, into a
folder that its processes share. So no stale copy of a program is ever run. The parent's half is
``code_server``; apart from it, because the two run in different processes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import platform
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from fiber._launch.code_server import digest_of
from fiber.exceptions import StartError

__all__ = ["CodeFinder", "ContentStore", "load_main"]

_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class ContentStore:
    """Files by SHA-256 digest: from the job's folder, else from the parent.

    Args:
        folder: folder that the processes of this job share.
        ask: sends a query to the parent, returns the answer.
    """

    def __init__(self, folder: Path, ask: Callable[[bytes], bytes]) -> None:
        self._folder = folder / "code"
        self._ask = ask

    def query(self, what: str, **more: str) -> dict[str, Any]:
        """Send a query to the parent; returns the answer, {} where there is none."""
        found: dict[str, Any] = json.loads(self._ask(json.dumps({"query": what, **more}).encode()))
        return found

    def content(self, digest: str) -> bytes:
        """Content of a digest.

        Raises:
            ImportError: the file was changed on the parent's side meanwhile.
        """
        path = self._folder / digest
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        if digest_of(content) != digest:
            content = self._ask(json.dumps({"query": "content", "digest": digest}).encode())
            if digest_of(content) != digest:
                msg = "a file of the program was changed while it was sent; start it again"
                raise ImportError(msg)
            self._keep(path, content)
        return content

    def file(self, digest: str, suffix: str) -> str:
        """Path of a file with the content of a digest."""
        path = self._folder / f"{digest}{suffix}"
        if not path.exists():
            self._keep(path, self.content(digest))
        return str(path)

    def _keep(self, path: Path, content: bytes) -> None:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError as error:
            msg = (
                f"the folder of this job, {self._folder.parent}, was removed while it ran, by a "
                f"cleaner of that host's temporary folder, say, or from a container that shares "
                f"it; set TMPDIR for jobs to a folder that is theirs"
            )
            raise ImportError(msg) from error
        # whole or not at all: other processes of the job look here
        descriptor, name = tempfile.mkstemp(dir=self._folder)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(name).replace(path)


class CodeFinder(importlib.abc.MetaPathFinder):
    """Finds the program's own modules as the parent has them; first in ``sys.meta_path``.

    Args:
        names: top-level names that the parent offers.
        store: sends the queries.
    """

    def __init__(self, names: frozenset[str], store: ContentStore) -> None:
        #: top-level names that the parent offers
        self.offered = names
        self._store = store
        self._ignored: dict[str, list[str]] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Spec of the module that the parent has, or None."""
        if fullname.partition(".")[0] not in self.offered:
            return None
        answer = self._store.query("module", name=fullname)
        if "ignored" in answer:
            self._ignored[fullname] = answer["ignored"]
            return None
        if not answer:
            return None
        local = importlib.machinery.PathFinder.find_spec(fullname, path)
        digest, origin = answer["digest"], answer["path"]
        if digest is None:
            return _namespace(fullname, local)
        if local is not None and _has(local.origin, digest):
            return local
        if origin.endswith(_EXTENSIONS):
            suffix = next(suffix for suffix in _EXTENSIONS if origin.endswith(suffix))
            return importlib.util.spec_from_file_location(
                fullname, self._store.file(digest, suffix)
            )
        loader = SentSource(fullname, origin, self._store.content(digest), self._store)
        spec = ModuleSpec(fullname, loader, origin=origin, is_package=answer["package"])
        if answer["package"]:
            spec.submodule_search_locations = [str(Path(origin).parent)]
        spec.has_location = True
        return spec

    def explain(self, error: ModuleNotFoundError) -> None:
        """Add the host and the remedy to the message of an error about a missing module."""
        name = error.name or ""
        top = name.partition(".")[0]
        here = f"on {platform.node()} ({sys.executable})"
        if str(error).startswith(f"no module named {name!r} on "):
            return
        if name in self._ignored:
            path, file, pattern = self._ignored[name]
            by = f"{file} (line {pattern!r})" if file else f"fiber ({pattern})"
            why = (
                f"{path} is ignored by {by} and so is not sent; write '!{Path(path).name}' there, "
                "or what is to be ignored by fiber into .fiberignore"
            )
        elif top in self.offered:
            why = "the program that started this job offers its package, and has no such module"
        else:
            why = (
                f"install it there (in its image, where it has one): pip install {top}; or start "
                "the program from a folder above its source, of which modules are sent"
            )
        error.msg = f"no module named {name!r} {here}: {why}"
        error.args = (error.msg,)


def load_main(store: ContentStore) -> None:
    """Load the program's ``__main__`` from the parent, as spawn does from a path."""
    answer = store.query("main")
    if not answer:
        msg = "the parent's __main__ cannot be read; it was removed while the program ran"
        raise StartError(msg)
    path = answer["path"]
    loader = SentSource("__mp_main__", path, store.content(answer["digest"]), store)
    module = types.ModuleType("__mp_main__")
    module.__file__ = path
    module.__loader__ = loader
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    exec(loader.get_code("__mp_main__"), vars(module))  # noqa: S102 - that is what a main is for


def _has(path: str | None, digest: str) -> bool:
    if path is None:
        return False
    try:
        return digest_of(Path(path).read_bytes()) == digest
    except OSError:
        return False


def _namespace(name: str, local: ModuleSpec | None) -> ModuleSpec:
    if local is not None and local.origin is None:
        # this host has a part of it too
        return local
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = []
    return spec


class SentSource(importlib.abc.InspectLoader):
    """Loader of a module whose source came from the parent."""

    def __init__(self, name: str, path: str, content: bytes, store: ContentStore) -> None:
        self._name = name
        self._path = path
        self._store = store
        #: its source
        self.content = content

    def get_source(self, fullname: str) -> str:
        """Source text, for tracebacks too."""
        return importlib.util.decode_source(self.content)

    def get_code(self, fullname: str) -> CodeType:
        """Compiled code; file and lines in tracebacks are the parent's."""
        code: CodeType = compile(self.content, self._path, "exec", dont_inherit=True)
        return code

    def get_filename(self, fullname: str) -> str:
        """Path of the file at the parent."""
        return self._path

    def get_data(self, path: str) -> bytes:
        """Content of a file beside it, for ``pkgutil.get_data``."""
        inside = os.path.relpath(path, Path(self._path).parent)
        answer = self._store.query("file", name=self._name, path=inside)
        if "digest" not in answer:
            raise FileNotFoundError(path)
        return self._store.content(answer["digest"])

    def get_resource_reader(self, fullname: str) -> _Reader:
        """Reader of the package's files, for ``importlib.resources``."""
        return _Reader(self._store, fullname)


class _Reader:
    def __init__(self, store: ContentStore, name: str) -> None:
        self._store = store
        self._name = name

    def files(self) -> _SentFile:
        return _SentFile(self._store, self._name, "")


class _SentFile:
    """A file or folder of a package on the parent's side: a ``Traversable``."""

    def __init__(self, store: ContentStore, package: str, path: str) -> None:
        self._store = store
        self._package = package
        self._path = path

    @property
    def name(self) -> str:
        return Path(self._path).name or self._package.rpartition(".")[2]

    def _describe(self) -> dict[str, Any]:
        return self._store.query("file", name=self._package, path=self._path or ".")

    def is_dir(self) -> bool:
        return "folder" in self._describe()

    def is_file(self) -> bool:
        return "digest" in self._describe()

    def iterdir(self) -> Iterator[_SentFile]:
        for name in self._describe().get("folder", ()):
            yield self / name

    def joinpath(self, *parts: str) -> _SentFile:
        return _SentFile(self._store, self._package, os.path.join(self._path, *parts))  # noqa: PTH118 - words

    def __truediv__(self, part: str) -> _SentFile:
        return self.joinpath(part)

    def read_bytes(self) -> bytes:
        answer = self._describe()
        if "digest" not in answer:
            msg = f"{self._package}: {self._path}"
            raise FileNotFoundError(msg)
        return self._store.content(answer["digest"])

    def read_text(self, encoding: str | None = None, errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors)

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        stream = io.BytesIO(self.read_bytes())
        return stream if "b" in mode else io.TextIOWrapper(stream, *args, **kwargs)
