"""Files are ignored as git ignores them."""

import shutil
import subprocess

import pytest

from fiber._launch.code_server import Ignore

FILES = [
    "a.py",
    "b.log",
    "build/x.py",
    "docs/build/x.py",
    "docs/readme.txt",
    "keep.log",
    "src/build.py",
    "src/deep/er/a.py",
    "src/deep/notes.txt",
    "src/gen/one.py",
    "src/gen/two.py",
    "tmp1/x.py",
    "tmpA/x.py",
    "with space.py",
]

CASES = {
    "names anywhere": "*.log\n!keep.log\n",
    "folders anywhere": "build/\n",
    "tied to the root": "/build/\n/a.py\n",
    "a slash in the middle ties": "src/gen/*.py\n!src/gen/two.py\n",
    "two stars before": "**/a.py\n",
    "two stars within": "src/**/a.py\n",
    "two stars after": "src/**\n",
    "one character": "tmp?\n",
    "sets": "tmp[0-9]/\n",
    "sets turned around": "tmp[!0-9]/\n",
    "comments, blanks and escapes": "# no\n\n\\#x\nwith\\ space.py\n",
    "nothing comes back from an ignored folder": "src/gen/\n!src/gen/two.py\n",
    "only what is in it": "src/*\n!src/gen\n",
    "spaces at the end": "b.log   \n",
}


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def ignored(folder):
    ignore = Ignore(folder)
    return {name for name in FILES if ignore.match(folder / name) is not None}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what it is compared with")
@pytest.mark.parametrize("name", CASES)
def test_git_agrees(folder, name):
    (folder / ".gitignore").write_text(CASES[name])
    subprocess.run(["git", "init", "-q", folder], check=True)
    output = subprocess.run(
        ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(FILES).encode(),
        capture_output=True,
        check=False,
    ).stdout
    assert ignored(folder) == set(filter(None, output.decode().split("\0")))


def test_the_nearest_file_counts(folder):
    (folder / ".gitignore").write_text("*.py\n")
    (folder / "src" / ".gitignore").write_text("!*.py\n")
    assert ignored(folder) == {name for name in FILES if name.endswith(".py")} - {
        name for name in FILES if name.startswith("src/")
    }


def test_fibers_own_file_takes_the_place_of_gits(folder):
    (folder / ".gitignore").write_text("*.py\n")
    (folder / ".fiberignore").write_text("*.txt\n")
    assert ignored(folder) == {"docs/readme.txt", "src/deep/notes.txt"}


def test_why_names_the_file_and_the_line(folder):
    (folder / ".gitignore").write_text("build/\n")
    why = Ignore(folder).match(folder / "build" / "x.py")
    assert why == (str(folder / ".gitignore"), "build/")


def test_what_is_not_below_is_no_matter(folder, tmp_path_factory):
    (folder / ".gitignore").write_text("*\n")
    assert Ignore(folder).match(tmp_path_factory.mktemp("other") / "a.py") is None


def test_some_folders_are_always_ignored(folder):
    assert Ignore(folder).match(folder / "__pycache__" / "a.pyc") == ("", "__pycache__/")


def test_an_invalid_pattern_is_skipped(folder):
    (folder / ".gitignore").write_text("[z-a]\nb.log\n")
    assert ignored(folder) == {"b.log"}
