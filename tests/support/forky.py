#!/usr/bin/env python3
"""Tests on a Python that is newer than this machine's: that of Debian's next suite, in a folder.

``python tests/support/forky.py [--cache FOLDER] -- PYTEST ARGUMENTS``, as root; where these name no
tests, it is those of the core and the local backend, several at once. The suite is
installed by debootstrap, once, and kept; the distributions are installed in it from wheels of this
checkout. What is mounted for the tests is seen by them alone, and gone with them however they end.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = "forky"
PYTHON = "python3.14"
PACKAGES = (
    *(PYTHON, f"{PYTHON}-venv", f"lib{PYTHON}-testsuite", "python3", "ca-certificates", "procps"),
    # hosts of the tests, an engine and a registry
    *("openssh-server", "openssh-client", "iptables", "iproute2", "docker.io", "docker-registry"),
)
#: programs that make it and run in it, and Debian's packages of them
PROGRAMS = {"debootstrap": "debootstrap", "git": "git", "unshare": "util-linux"}
MIRROR = "http://deb.debian.org/debian"
#: what tox.ini gives tests, of the index and of this checkout
DEPENDENCIES = ("aiohttp>=3.10", "joblib>=1.5", "numpy", "pytest-xdist>=3.5")
CORE = "fiber-core[examples,testing]"
PLUGINS = ("docker", "k8s", "local", "ssh")
TESTS = ("fiber_core/tests", "tests/compat", *(f"plugins/fiber_{name}/tests" for name in PLUGINS))
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
exec chroot "$root" "$@"
"""


class MissingError(Exception):
    """Something that this machine lacks."""


def main(arguments: Sequence[str]) -> int:
    """Make what is missing and run pytest; its exit code, or 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fiber", SUITE)
    parser.add_argument("--cache", type=Path, default=cache, help="where it is kept: %(default)s")
    parser.add_argument("words", nargs="*", metavar="PYTEST ARGUMENT")
    chosen = parser.parse_args(arguments)
    try:
        if os.geteuid() != 0:
            raise MissingError("only root may make a root folder and mount what tests need in it")
        for program, package in PROGRAMS.items():
            if shutil.which(program, path=SYSTEM) is None:
                raise MissingError(f"there is no {program}; run apt-get install {package}")
        suite = Suite(chosen.cache.resolve())
        suite.make()
        suite.install()
    except MissingError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"failed: {shlex.join(map(str, error.cmd))}", file=sys.stderr)
        return 2
    words = ["-n", "4", "--dist", "loadfile", *chosen.words]
    if not any((ROOT / word.partition("::")[0]).exists() for word in chosen.words):
        words += TESTS
    return suite.call("/venv/bin/python", "-m", "pytest", *words)


class Suite:
    """A root folder of the suite, with an environment that has the distributions.

    Args:
        cache: the folder it is kept in.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._root = cache / "root"
        pip = pip_options()
        kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
        self._environ = {**pip, **kept, "HOME": "/root", "LANG": "C.UTF-8", "PATH": PATH}

    def make(self) -> None:
        """Install the suite where that was not done yet."""
        words = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE]
        made = self._cache / "made"
        if self._root.exists():
            if made.exists() and made.read_text() == " ".join(words):
                return
            shutil.rmtree(self._root)
        unfinished = self._cache / "unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._cache.mkdir(parents=True, exist_ok=True)
        print(f"installing Debian's {SUITE} into {self._root}", flush=True)
        command = [*words, str(unfinished), mirror()]
        scripts = Path("/usr/share/debootstrap/scripts")
        if not (scripts / SUITE).exists():
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
            raise MissingError(f"debootstrap failed: {last} (all of it is in {log})")
        unfinished.rename(self._root)
        made.write_text(" ".join(words))

    def install(self) -> None:
        """Put this checkout in, and its distributions as wheels into the environment."""
        checkout = self._root / "checkout"
        if checkout.exists():
            shutil.rmtree(checkout)
        for file in files_of_checkout():
            (checkout / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, checkout / file, follow_symlinks=False)
        print("installing the distributions from wheels", flush=True)
        if not (self._root / "venv").exists():
            self._run(PYTHON, "-m", "venv", "/venv")
        folders = ["fiber_core", *(f"plugins/fiber_{name}" for name in PLUGINS)]
        shutil.rmtree(self._root / "wheels", ignore_errors=True)
        self._pip("wheel", "--no-deps", "--wheel-dir", "/wheels", *(f"./{one}" for one in folders))
        names = (CORE, *(f"fiber-{name}" for name in PLUGINS))
        self._pip("install", "--find-links", "/wheels", *names, *DEPENDENCIES)
        # the versions are those of the last time, their content is not
        wheels = sorted(f"/wheels/{path.name}" for path in (self._root / "wheels").iterdir())
        self._pip("install", "--no-deps", "--force-reinstall", *wheels)

    def call(self, *words: str) -> int:
        """Run a command in the checkout inside; its exit code."""
        paths = dict.fromkeys((*SHOWN, *named_paths(self._environ)))
        shown = [path for path in paths if Path(path).exists()]
        inside = ("sh", "-c", 'cd /checkout && exec "$@"', "sh", *words)
        # what runs inside ends with this process, however that ends
        ending = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--fork", "--kill-child")
        mounting = (*ending, "sh", "-ec", MOUNT, "sh", str(self._root))
        return subprocess.call([*mounting, *shown, "--", *inside], env=self._environ)

    def _run(self, *words: str) -> None:
        code = self.call(*words)
        if code:
            raise subprocess.CalledProcessError(code, words)

    def _pip(self, *words: str) -> None:
        # it warns of each index of this machine that lacks a distribution
        self._run("/venv/bin/python", "-m", "pip", "-qq", *words)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
