"""Root folders with a suite of Debian, made once by debootstrap and kept, in which programs run as root.

What is mounted for a program is seen by it alone, and gone with it however it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["DebianRoot", "MissingError", "files_of_checkout"]

ROOT = Path(__file__).resolve().parents[1]
#: programs that make it and run in it, and Debian's packages of them
PROGRAMS = {"debootstrap": "debootstrap", "git": "git", "unshare": "util-linux"}
MIRROR = "http://deb.debian.org/debian"
PATH = "/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: where programs of this machine are
SYSTEM = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
#: of the caller's environment what goes in, besides pip's own
KEPT = re.compile(
    r"(https?|no)_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE|PIP_.*|FIBER_REQUIRE", re.IGNORECASE
)
#: of this machine, seen inside at the same places
SHOWN = ("/dev", "/proc", "/sys", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs")
MOUNT = """
root=$1; shift
# who lives in it sees it as a mounted file system, as every other root is one
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}"; touch "$root$1"; fi
    mount --rbind "$1" "$root$1"; shift
done
shift
# and as the root of its namespace, which an engine's exec enters anew: after a mere chroot, that
# finds this machine's files in place of the container's
pivot_root "$root" "$root/mnt"
cd /
umount -l /mnt
exec "$@"
"""


class MissingError(Exception):
    """Something that this machine lacks."""


class DebianRoot:
    """A root folder of a suite.

    Args:
        suite: the name of the suite.
        packages: what is installed, besides what every system has.
        cache: the folder it is kept in; None for one of this user's.
    """

    def __init__(self, suite: str, packages: Sequence[str], cache: Path | None = None) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._suite, self._packages = suite, packages
        self._cache = (cache or home / "fiber" / suite).resolve()
        #: the folder
        self.path = self._cache / "root"
        kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
        self._environ = {**pip_options(), **kept, "HOME": "/root", "LANG": "C.UTF-8", "PATH": PATH}

    def make(self) -> None:
        """Install the suite where that was not done yet.

        Raises:
            MissingError: this machine lacks what that takes.
        """
        if os.geteuid() != 0:
            msg = "only root may make a root folder and mount what programs need in it"
            raise MissingError(msg)
        for program, package in PROGRAMS.items():
            if shutil.which(program, path=SYSTEM) is None:
                msg = f"there is no {program}; run apt-get install {package}"
                raise MissingError(msg)
        include = f"--include={','.join(self._packages)}"
        words = ["debootstrap", "--variant=minbase", include, self._suite]
        made = self._cache / "made"
        if self.path.exists():
            if made.exists() and made.read_text() == " ".join(words):
                return
            shutil.rmtree(self.path)
        unfinished = self._cache / "unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._cache.mkdir(parents=True, exist_ok=True)
        print(f"installing Debian's {self._suite} into {self.path}", flush=True)
        command = [*words, str(unfinished), mirror()]
        scripts = Path("/usr/share/debootstrap/scripts")
        if not (scripts / self._suite).exists():
            # this machine's debootstrap is older than the suite
            command.append(str(scripts / "sid"))
        log = self._cache / "debootstrap.log"
        with log.open("w") as output:
            # it mounts too
            code = subprocess.call(
                ["unshare", "--mount", *command],
                env={**os.environ, "PATH": SYSTEM},
                stdout=output,
                stderr=output,
            )
        if code:
            last = log.read_text().splitlines()[-1:]
            msg = f"debootstrap failed: {last} (all of it is in {log})"
            raise MissingError(msg)
        unfinished.rename(self.path)
        made.write_text(" ".join(words))

    def call(self, *words: str, folder: str = "/", shows: Sequence[Path] = ()) -> int:
        """Run a command in a folder inside; its exit code.

        Args:
            words: the command.
            folder: where it runs.
            shows: folders of this machine that it sees, where they are there, and may write into, at the
                same places.
        """
        paths = dict.fromkeys((*SHOWN, *named_paths(self._environ), *map(str, shows)))
        shown = [path for path in paths if Path(path).exists()]
        inside = ("sh", "-c", 'cd "$0" && exec "$@"', folder, *words)
        # what runs inside ends with this process, however that ends
        ending = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--fork", "--kill-child")
        mounting = (*ending, "sh", "-ec", MOUNT, "sh", str(self.path))
        return subprocess.call([*mounting, *shown, "--", *inside], env=self._environ)


def mirror() -> str:
    """Where this machine's packages come from, if that is a mirror of Debian."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    told = "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
    found = re.search(r"^(?:URIs:|deb\s).*?(https?://\S+/debian)/?(?=\s)", told, re.MULTILINE)
    return found[1] if found else MIRROR


def pip_options() -> dict[str, str]:
    """What pip is told by this machine's files, as variables."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.findall(r"^(?:global|install)\.([\w-]+)='(.*)'$", told, re.MULTILINE)
    return {
        f"PIP_{option.upper().replace('-', '_')}": " ".join(value.replace("\\n", " ").split())
        for option, value in found
    }


def named_paths(environ: Mapping[str, str]) -> Iterator[str]:
    """Files and folders of this machine that variables name: certificates, indexes, wheels."""
    for name, value in environ.items():
        if name.startswith(("PIP_", "SSL_", "REQUESTS_")):
            for word in value.split():
                path = Path(word.removeprefix("file://"))
                # the pages of an index name files that lie beside them
                shown = str(path if word.startswith("/") else path.parent)
                # those in folders that are shown anyhow would be mounted twice
                if shown.startswith("/") and not shown.startswith(SHOWN):
                    yield shown


def files_of_checkout() -> list[str]:
    """All files but those that git ignores."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).exists()]
