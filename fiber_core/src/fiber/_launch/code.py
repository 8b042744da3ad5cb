"""The program's own modules, and files beside them, for jobs on other hosts: server in the parent, finder in the job.

Offered are files below the working directory or the script's folder, and loaded modules from other
places that are no installation; never installed packages, and no file that ``.fiberignore`` or
``.gitignore`` excludes. Content goes by its SHA-256 digest, so that a job asks only for what it
lacks. Modules are found as an import would find them, and never imported for it. Patterns are those of
https://git-scm.com/docs/gitignore.

In the job, a finder before all others asks for modules by the names that the parent offers. Where its host has
the very same file, only its digest is compared; else the content comes once to each job, into a
folder that its processes share. So no stale copy of a program is ever run.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import pkgutil
import platform
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from fiber._base.entry_points import import_paths
from fiber._base.interpreter import working_folder
from fiber._base.threads import CallbackThread
from fiber._launch import module_server
from fiber.exceptions import StartError

__all__ = [
    "CodeFinder",
    "CodeServer",
    "ContentStore",
    "Ignore",
    "IgnoredBy",
    "compile_pattern",
    "digest_of",
    "load_main",
    "parse",
]

#: files with patterns; in a folder that has the first, the second is not read
FILES = (".fiberignore", ".gitignore")
#: patterns that always apply
_NEVER = ("__pycache__/", ".git/", ".hg/", ".svn/", ".venv/", ".tox/", "node_modules/")


class Pattern(NamedTuple):
    """Pattern: one line of an ignore file."""

    #: matches a path relative to the file's folder
    matches: re.Pattern[str]
    #: True where it takes back what lines before it matched
    negated: bool
    #: True where it matches folders alone
    folders_only: bool
    #: as it was written
    text: str


class IgnoredBy(NamedTuple):
    """File and pattern by which a path is ignored."""

    #: the ignore file; "" where Fiber itself ignores the path
    file: str
    #: the line
    pattern: str


def compile_pattern(line: str) -> Pattern | None:
    """Compile one line of an ignore file; None for blank lines and comments."""
    text = line.rstrip("\n").rstrip("\r")
    while text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1]
    if not text or text.startswith("#"):
        return None
    words = text
    negated = words.startswith("!")
    words = words[1:] if negated else words
    folders_only = words.endswith("/")
    words = words.rstrip("/") if folders_only else words
    if not words:
        return None
    # a slash at the start or in the middle ties it to the file's own folder
    anchored = "/" in words
    body = _expression(words.lstrip("/"))
    prefix = "" if anchored else "(?:.*/)?"
    return Pattern(re.compile(f"{prefix}{body}", re.DOTALL), negated, folders_only, text)


def _expression(words: str) -> str:
    found = ""
    position = 0
    while position < len(words):
        rest = words[position:]
        if rest.startswith("**/") and (position == 0 or words[position - 1] == "/"):
            found += "(?:.*/)?"
            position += 3
        elif rest == "**" and position and words[position - 1] == "/":
            found += ".+"
            position += 2
        elif rest[0] == "*":
            found += "[^/]*"
            position += len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            found += "[^/]"
            position += 1
        elif rest[0] == "[" and (end := rest.find("]", 2)) > 0:
            inner = rest[1:end].replace("\\", "\\\\")
            found += f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]"
            position += end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            found += re.escape(rest[1])
            position += 2
        else:
            found += re.escape(rest[0])
            position += 1
    return found


def parse(text: str) -> list[Pattern]:
    """Patterns of an ignore file; lines that cannot be compiled are skipped."""
    found = []
    for line in text.splitlines():
        try:
            pattern = compile_pattern(line)
        except re.error:
            continue
        if pattern is not None:
            found.append(pattern)
    return found


class Ignore:
    """Ignore rules below a folder. Each file is read once.

    Args:
        root: the folder; files of patterns count in it and in each folder below.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[PurePosixPath, tuple[str, list[Pattern]]] = {}
        self._never = parse("\n".join(_NEVER))

    def match(self, path: Path, *, is_folder: bool = False) -> IgnoredBy | None:
        """Rule by which a path below the root is ignored; None where there is none."""
        try:
            relative = PurePosixPath(path.relative_to(self._root).as_posix())
        except ValueError:
            return None
        parts = relative.parts
        for count in range(1, len(parts) + 1):
            # everything in an ignored folder is ignored, whatever other patterns match
            found = self._judge(
                PurePosixPath(*parts[:count]), is_folder=is_folder or count < len(parts)
            )
            if found is not None:
                return found
        return None

    def _judge(self, path: PurePosixPath, *, is_folder: bool) -> IgnoredBy | None:
        found = _last(self._never, str(path), is_folder=is_folder)
        if found is not None:
            return IgnoredBy("", found.text)
        # the nearest file with a matching pattern counts
        for folder in path.parents:
            file, patterns = self._patterns(folder)
            last = _last(patterns, str(path.relative_to(folder)), is_folder=is_folder)
            if last is not None:
                return None if last.negated else IgnoredBy(file, last.text)
        return None

    def _patterns(self, folder: PurePosixPath) -> tuple[str, list[Pattern]]:
        known = self._files.get(folder)
        if known is None:
            known = self._files[folder] = self._read(self._root / folder)
        return known

    def _read(self, folder: Path) -> tuple[str, list[Pattern]]:
        for name in FILES:
            try:
                text = (folder / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            return str(folder / name), parse(text)
        return "", []


def _last(patterns: list[Pattern], path: str, *, is_folder: bool) -> Pattern | None:
    for pattern in reversed(patterns):
        if (is_folder or not pattern.folders_only) and pattern.matches.fullmatch(path):
            return pattern
    return None


_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


def digest_of(content: bytes) -> str:
    """SHA-256 digest of some content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


class _Found(NamedTuple):
    """A module as an import would find it."""

    origin: str | None
    locations: list[str] | None
    #: its source, where this process got it from its own parent
    content: bytes | None = None


class CodeServer:
    """Answers queries for the program's own modules and files.

    They are answered on a thread of their own: a file system may be slow.
    """

    def __init__(self) -> None:
        folders = [working_folder(), getattr(sys.modules["__main__"], "__file__", None)]
        roots = [Path(folders[0] or "/")]
        if folders[1] is not None:
            roots.append(Path(roots[0], folders[1]).parent)
        self._roots = tuple(dict.fromkeys(root.absolute() for root in roots))
        self._ignores = {root: Ignore(root) for root in self._roots}
        self._installed = module_server.installed_folders()
        #: digests that were sent in answers, and may be requested
        self._contents: dict[str, Path | bytes] = {}
        self._fiber_names: frozenset[str] | None = None
        self._thread = CallbackThread("fiber-code-server")

    # -- questions

    def submit(self, question: bytes, answer: Callable[[bytes], None]) -> None:
        """Queue a query; ``answer`` is called with the result on the server's thread."""
        self._thread.put(self._answer, question, answer)

    def close(self) -> None:
        """Stop answering, and end the thread."""
        self._thread.close(5)

    def _answer(self, question: bytes, answer: Callable[[bytes], None]) -> None:
        try:
            found = self.answer(json.loads(question))
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            found = b"{}"
        answer(found)

    def answer(self, question: dict[str, Any]) -> bytes:
        """Answer to one query: JSON, or for the query ``content`` the bytes."""
        what = question["query"]
        if what == "content":
            return self._content(str(question["digest"]))
        if what == "module":
            found = self.module(str(question["name"]))
        elif what == "main":
            found = self._main()
        else:
            found = self._file(str(question["name"]), str(question["path"]))
        return json.dumps(found).encode()

    # -- modules

    def names(self) -> frozenset[str]:
        """Top-level names that the finder of a job is to ask for."""
        found = set(module_server.own_names())
        for entry in import_paths():
            folder = Path(self._roots[0], entry)
            if self._root_of(folder) is None or self._is_installed(str(folder)):
                continue
            try:
                names = [(item.name, item.is_dir()) for item in os.scandir(folder)]
            except OSError:
                continue
            for name, is_folder in names:
                stem = name if is_folder else name.partition(".")[0]
                if stem.isidentifier() and (is_folder or name.endswith((".py", *_EXTENSIONS))):
                    found.add(stem)
        return frozenset((found | self._offered_by_parent()) - self._installed_with_fiber())

    def module(self, name: str) -> dict[str, Any]:
        """Description of a module: path, package, digest; {} where it is not offered."""
        if not all(part.isidentifier() for part in name.split(".")):
            return {}
        if name.partition(".")[0] in self._installed_with_fiber():
            return {}
        found = self._find(name)
        if found is None:
            return {}
        loaded = sys.modules.get(name)
        if found.content is not None:
            return self._describe(found, found.content, found.content)
        if found.origin is None:
            return self._namespace(name, found)
        path = Path(found.origin)
        if self._is_installed(found.origin) or (self._root_of(path) is None and loaded is None):
            return {}
        why = self._ignored(path)
        if why is not None:
            return {"ignored": [str(path), *why]}
        try:
            content = path.read_bytes()
        except OSError:
            # inside an archive: its own loader knows it
            source = module_server.source_of(name)
            if source is None:
                return {}
            content = source.encode()
            return self._describe(found, content, content)
        return self._describe(found, content, path)

    def _namespace(self, name: str, found: _Found) -> dict[str, Any]:
        if found.locations is not None and name.partition(".")[0] in self._offered_by_parent():
            return {"path": None, "package": True, "digest": None}
        for location in found.locations or ():
            if self._root_of(Path(location)) is not None and not self._is_installed(location):
                return {"path": None, "package": True, "digest": None}
        return {}

    def _describe(self, found: _Found, content: bytes, source: Path | bytes) -> dict[str, Any]:
        digest = digest_of(content)
        self._contents[digest] = source
        is_package = found.locations is not None
        return {"path": found.origin, "package": is_package, "digest": digest}

    def _find(self, name: str) -> _Found | None:
        module = sys.modules.get(name)
        if module is not None:
            return _found(
                module_server.file_of(module),
                getattr(module, "__path__", None),
                getattr(module, "__loader__", None),
            )
        above, _, _ = name.rpartition(".")
        package = self._find(above) if above else None
        if above and (package is None or package.locations is None):
            return None
        path = None if package is None else package.locations
        for finder in sys.meta_path:
            try:
                if path is not None and finder is importlib.machinery.PathFinder:
                    spec = _find_in(name, path)
                else:
                    spec = finder.find_spec(name, path)
            except (ImportError, ValueError, AttributeError):
                continue
            if spec is not None:
                origin = spec.origin if spec.has_location else None
                return _found(origin, spec.submodule_search_locations, spec.loader)
        return None

    def _main(self) -> dict[str, Any]:
        main = sys.modules["__main__"]
        path = getattr(main, "__file__", None)
        if path is None:
            return {}
        found = _found(path, None, getattr(main, "__loader__", None))
        if found.content is not None:
            return self._describe(found, found.content, found.content)
        file = Path(self._roots[0], path)
        return self._describe(found, file.read_bytes(), file)

    # -- files beside them

    def _file(self, package: str, path: str) -> dict[str, Any]:
        found = self._find(package)
        if found is None or not found.locations or not self.module(package):
            return {}
        for location in found.locations:
            folder = Path(location)
            file = Path(os.path.normpath(folder / path))
            if file != folder and folder not in file.parents:
                continue
            if self._ignored(file) is not None:
                continue
            if file.is_dir():
                names = sorted(one.name for one in file.iterdir() if self._ignored(one) is None)
                return {"folder": names}
            if file.is_file():
                return {**self._describe(_Found(str(file), None), file.read_bytes(), file)}
        return {}

    def _content(self, digest: str) -> bytes:
        source = self._contents.get(digest, b"")
        return source if isinstance(source, bytes) else source.read_bytes()

    # -- what is offered

    def _root_of(self, path: Path) -> Path | None:
        return next((r for r in self._roots if r == path or r in path.parents), None)

    def _is_installed(self, path: str) -> bool:
        return path.startswith(self._installed) or module_server.is_in_package(path)

    def _ignored(self, path: Path) -> tuple[str, str] | None:
        root = self._root_of(path)
        why = None if root is None else self._ignores[root].match(path, is_folder=path.is_dir())
        return None if why is None else (why.file, why.pattern)

    def _offered_by_parent(self) -> set[str]:
        """Names that this process's own parent offers."""
        return {name for finder in sys.meta_path for name in getattr(finder, "offered", ())}

    def _installed_with_fiber(self) -> frozenset[str]:
        """Names of Fiber and its plugins: each host has its own installation."""
        if self._fiber_names is None:
            points = metadata.entry_points(group="fiber")
            self._fiber_names = frozenset({"fiber", *(p.module.partition(".")[0] for p in points)})
        return self._fiber_names


def _find_in(name: str, path: Iterable[str]) -> importlib.machinery.ModuleSpec | None:
    """Spec of a submodule found in its package's path, without importing the package."""
    portions: list[str] = []
    for entry in path:
        importer = pkgutil.get_importer(entry)
        spec = None if importer is None else importer.find_spec(name)
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    namespace = importlib.machinery.ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _found(origin: str | None, locations: Iterable[str] | None, loader: object) -> _Found:
    content = getattr(loader, "content", None)
    # a namespace would look for its parent among the modules that are loaded
    locations = getattr(locations, "_path", locations)
    return _Found(
        origin,
        None if locations is None else list(locations),
        content if isinstance(content, bytes) else None,
    )


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
