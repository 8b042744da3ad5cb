"""A tutorial that is run as it is written: its files are made and changed, its commands are run.

Blocks with a caption are files: whole ones, changes (``diff``), or a part of what is there (``(as
it is)``). Blocks of ``console`` are commands behind ``$``, each with words that it prints; ``…``
stands for anything.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from distributions import Site

_BLOCK = re.compile(
    r"^```(?:\{code-block\} )?(?P<kind>\w+)\n(?::caption: (?P<caption>[^\n]+)\n)?(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_AS_IT_IS = " (as it is)"
_INSTALL = 'pip install -e ".[test]"'
#: a command of a tutorial takes this long at most, on a machine that does much else
_PATIENCE = 900


def sections(page: Path) -> list[tuple[str, str]]:
    """Titles and texts of a page's sections that say what to do, in order."""
    parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part) for part in parts if _BLOCK.search(part)]


class Reader:
    """Somebody who does what a tutorial says, in a fresh folder.

    Args:
        page: the tutorial.
        folder: where; what is installed goes to a folder beside it.
    """

    def __init__(self, page: Path, folder: Path) -> None:
        self._todo = sections(page)
        self.folder = folder / "work"
        self.folder.mkdir()
        self.site = Site(folder / "site")
        scripts = str(Path(sys.executable).parent)
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "FIBER_"))},
            "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
            "PYTHONPATH": str(self.site.folder),
        }

    def follow(self, title: str) -> None:
        """Do all that is said up to the end of a section, and was not done yet."""
        while title in [todo for todo, _ in self._todo]:
            _, text = self._todo.pop(0)
            for block in _BLOCK.finditer(text):
                if block["kind"] == "console":
                    self._console(block["body"])
                elif block["caption"] is not None:
                    self._file(block["kind"], block["caption"], block["body"])

    # -- files

    def _file(self, kind: str, caption: str, body: str) -> None:
        path = self.folder / caption.removesuffix(_AS_IT_IS)
        if caption.endswith(_AS_IT_IS):
            assert body in path.read_text(), f"{path} does not have:\n{body}"
        elif kind == "diff":
            path.write_text(changed(path.read_text(), body, str(path)))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)

    # -- commands

    def _console(self, body: str) -> None:
        command, shown = "", []
        for line in [*body.splitlines(), "$ "]:
            if not line.startswith("$ "):
                shown.append(line)
                continue
            if command:
                self._command(command, shown)
            command, shown = line[2:], []

    def _command(self, command: str, shown: list[str]) -> None:
        if command.startswith("cd "):
            self.folder /= command[3:]
        elif command.startswith("export "):
            name, _, value = command[7:].partition("=")
            self.environ[name] = self._run(f"printf %s {value}")
        elif command == _INSTALL:
            self._install()
        else:
            told = self._run(command)
            for line in shown:
                pattern = ".*".join(re.escape(part) for part in line.split("…"))
                assert re.search(pattern, told), f"{command} does not print {line!r}, but:\n{told}"

    def _run(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _install(self) -> None:
        """What an editable install does, without the network that its build needs."""
        metadata = (self.folder / "pyproject.toml").read_text()
        name, version = (
            re.search(rf'^{key} = "(.+)"$', metadata, re.MULTILINE) for key in ("name", "version")
        )
        points = re.search(
            r"^\[project\.entry-points\.fiber\]\n(.+?) = \"(.+?)\"$", metadata, re.MULTILINE
        )
        assert name and version and points
        self.site.add(name[1], version=version[1], entry_points={points[1]: points[2]})
        self.environ["PYTHONPATH"] += os.pathsep + str(self.folder / "src")


def changed(text: str, change: str, name: str) -> str:
    """A text after a change that is written as a diff without numbers.

    The lines before it, those without a plus, must be there exactly once.
    """
    lines = change.splitlines(keepends=True)
    before = "".join(line[1:] or line for line in lines if not line.startswith("+"))
    after = "".join(line[1:] or line for line in lines if not line.startswith("-"))
    assert text.count(before) == 1, f"{name} has {text.count(before)} times:\n{before}"
    return text.replace(before, after)
