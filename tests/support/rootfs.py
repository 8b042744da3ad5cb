"""Root file system with this machine's own Python, small enough to be imported in seconds.

It holds the interpreter that runs the tests with its standard library, a shell and a few
programs, this checkout's distributions, and what they need. No registry is asked.
"""

import importlib.metadata
import importlib.util
import io
import marshal
import os
import re
import struct
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from commands import ran

#: the checkout
ROOT = Path(__file__).parents[2]
_STDLIB = Path(sysconfig.get_path("stdlib"))
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY = f"usr/local/lib/{_VERSION}"
#: Debian's own Pythons look elsewhere
_SITE = f"{_LIBRARY}/{'dist' if 'deb_system' in sysconfig.get_scheme_names() else 'site'}-packages"
_PROGRAMS = ("bash", "cat", "chmod", "cp", "env", "false", "id", "kill", "ls", "mkdir", "ps", "rm")
_MORE_PROGRAMS = ("sed", "sh", "sleep", "tar", "test", "touch", "true")
_LEFT_OUT = re.compile(
    r"/(test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|config-[^/]*)/"
    # bytecode that is being written has a number at its end
    r"|\.pyc\.\d+$"
    rf"|\.opt-\d\.pyc$|\.(?!{sys.implementation.cache_tag})[a-z]+-\d+\.pyc$|/lib-dynload/(_tkinter|_test|_ctypes_test|nis)[^/]*$|/pydoc_data/"
)
#: former parts of the C library, which programs built elsewhere still name
_NAMED = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")
#: large parts that nothing imports
_UNUSED = re.compile(r"kubernetes/aio/|numpy/.*/tests/")
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "run", "srv", "sys", "usr", "usr/bin")
_MORE_FOLDERS = ("usr/lib", "usr/lib64", "usr/local", "usr/local/bin", "usr/sbin", "var", "work")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_SCRIPT = """#!/usr/local/bin/python3
import sys
from {module} import {attr}
sys.exit({attr}())
"""


def write(stream: IO[bytes], distributions: Sequence[str]) -> None:
    """Write the filesystem as a tar archive.

    Args:
        stream: the destination.
        distributions: distributions in it besides Python, with their dependencies.
    """
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        tree = _Tree(archive)
        for name in (*_FOLDERS, *_MORE_FOLDERS):
            tree.folder(name)
        tree.folder("tmp", 0o1777)
        for name, target in _LINKS.items():
            tree.link(name, target)
        for name, text in _FILES.items():
            tree.text(name, text)
        tree.binary(Path(sys.executable).resolve(), f"usr/local/bin/{_VERSION}")
        for name in ("python", "python3"):
            tree.link(f"usr/local/bin/{name}", _VERSION)
        for program in (*_PROGRAMS, *_MORE_PROGRAMS):
            tree.binary(Path("/bin", program).resolve(), f"usr/bin/{program}")
        for path in _walk(_STDLIB):
            tree.file(path, f"{_LIBRARY}/{path.relative_to(_STDLIB)}")
        for name in _closure(distributions):
            distribution = importlib.metadata.distribution(name)
            for path, where in _contents(distribution):
                tree.source(path, f"{_SITE}/{where}")
            for point in distribution.entry_points.select(group="console_scripts"):
                script = _SCRIPT.format(module=point.module, attr=point.attr)
                tree.text(f"usr/local/bin/{point.name}", script, 0o755)
        tree.libraries()


class _Tree:
    """An archive with each path once, and the shared libraries that its binaries need."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._names: set[str] = set()
        self._binaries: set[Path] = set()

    def folder(self, name: str, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._add(info)

    def link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._add(info)

    def text(self, name: str, text: str, mode: int = 0o644) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text), mode
        self._add(info, io.BytesIO(text.encode()))

    def file(self, path: Path, name: str) -> None:
        status = path.stat()
        info = tarfile.TarInfo(name)
        # the interpreter compares a source's time with what its compiled file says
        info.size, info.mtime = status.st_size, int(status.st_mtime)
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        with path.open("rb") as stream:
            self._add(info, stream)
        if ".so" in path.name:
            self._binaries.add(path)

    def source(self, path: Path, name: str) -> None:
        """Add a file, and the bytecode of a Python source, so that no process has to compile it."""
        if path.suffix == ".py" and (code := _compiled(path, f"/{name}")) is not None:
            folder, _, file = name.rpartition("/")
            tag = sys.implementation.cache_tag
            info = tarfile.TarInfo(f"{folder}/__pycache__/{file.removesuffix('.py')}.{tag}.pyc")
            info.size, info.mode = len(code), 0o644
            self._add(info, io.BytesIO(code))
        self.file(path, name)

    def binary(self, path: Path, name: str) -> None:
        self.file(path, name)
        self._binaries.add(path)

    def libraries(self) -> None:
        found = _shared(self._binaries)
        folder = found["libc.so.6"].parent
        named = {name: folder / name for name in _NAMED if (folder / name).exists()}
        for name, path in sorted({**named, **found}.items()):
            loader = name.startswith("ld-linux")
            self.file(path, f"usr/lib64/{name}" if loader else f"usr/lib/{name}")

    def _add(self, info: tarfile.TarInfo, stream: IO[bytes] | None = None) -> None:
        if info.name not in self._names:
            self._names.add(info.name)
            self._archive.addfile(info, stream)


def _compiled(path: Path, name: str) -> bytes | None:
    """A source's bytecode; None where it lies beside it already."""
    status = path.stat()
    stamp = struct.pack("<III", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    head = importlib.util.MAGIC_NUMBER + stamp
    kept = Path(importlib.util.cache_from_source(str(path)))
    if kept.is_file():
        with kept.open("rb") as stream:
            if stream.read(len(head)) == head:
                return None
    try:
        return head + marshal.dumps(compile(path.read_bytes(), name, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        # a template that only looks like Python
        return None


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _LEFT_OUT.search(f"{folder}/{name}/")]
        yield from (Path(folder, n) for n in sorted(files) if not _LEFT_OUT.search(f"{folder}/{n}"))


def _shared(paths: Iterable[Path]) -> dict[str, Path]:
    """The shared libraries of this machine that binaries need, by name."""
    answer = ran(["ldd", *sorted(paths)])
    found: dict[str, Path] = {}
    for line in answer.stdout.splitlines():
        match = re.search(r"(?:(\S+) => )?(/\S+) \(0x", line)
        if match and "site-packages" not in match[2]:
            path = Path(match[2])
            found[match[1] or path.name] = path.resolve()
    return found


def _closure(names: Iterable[str]) -> list[str]:
    """Distributions and all that they need here, without extras."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found[name] = None
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return list(found)


def _contents(distribution: importlib.metadata.Distribution) -> Iterator[tuple[Path, str]]:
    """The files of a distribution, with their places in site-packages."""
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if _UNUSED.match(str(file)) or str(file).startswith(".."):
            continue
        if path.is_file() and path.suffix != ".pth":
            yield path, str(file)
    name = distribution.metadata["Name"].replace("-", "_")
    for source in (ROOT / name / "src", ROOT / "plugins" / name / "src"):
        # an editable install has no code of its own
        for path in _walk(source):
            yield path, str(path.relative_to(source))
