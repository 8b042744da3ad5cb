"""Modules, mains and files that come from the parent, and which of them are ignored."""

import importlib
import importlib.resources
import importlib.util
import json
import linecache
import os
import pkgutil
import shutil
import subprocess
import sys
import sysconfig
import traceback
import types
import zipfile
from pathlib import Path

import pytest

from fiber._launch import module_server
from fiber._launch.code import (
    CodeFinder,
    CodeServer,
    ContentStore,
    Ignore,
    digest_of,
    load_main,
)
from fiber.exceptions import StartError

FILES = {
    "near_app.py": "VALUE = 1\n",
    "near_pkg/__init__.py": "from .inner import VALUE\n",
    "near_fails.py": "def fail():\n    raise KeyError('a line of its own')\n",
    "near_pkg/inner.py": "VALUE = 2\n",
    "near_pkg/data/table.csv": "a,b\n",
    "near_pkg/data/secret.key": "no\n",
    "near_space/deep/er.py": "VALUE = 3\n",
    "near_hidden.py": "VALUE = 4\n",
    "lib/site-packages/near_installed.py": "VALUE = 5\n",
    ".gitignore": "*.key\nnear_hidden.py\n",
}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A folder with a program, which is the working directory of the parent."""
    folder = tmp_path / "program"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield folder
    for name in [name for name in sys.modules if name.startswith("near_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


class Host:
    """Another host: it has its own path, and its questions are counted."""

    def __init__(self, folder, sources):
        self.folder = folder
        self.asked = []
        self.sources = sources
        self.store = ContentStore(folder, self.ask)
        self.finder = CodeFinder(sources.names(), self.store)

    def ask(self, question):
        query = json.loads(question)
        self.asked.append(query)
        # as the parent, which has its own path
        before, sys.path = sys.path, [str(Path.cwd()), *sys.path]
        kept, sys.meta_path = sys.meta_path, [f for f in sys.meta_path if f is not self.finder]
        near = {name: sys.modules.pop(name) for name in list(sys.modules) if "near_" in name}
        try:
            return self.sources.answer(query)
        finally:
            sys.path, sys.meta_path = before, kept
            sys.modules.update(near)

    def contents(self):
        return [query for query in self.asked if query["query"] == "content"]


@pytest.fixture
def host(program, tmp_path, monkeypatch):
    sources = CodeServer()
    host = Host(tmp_path, sources)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(program)])
    monkeypatch.setattr(sys, "meta_path", [host.finder, *sys.meta_path])
    return host


def test_a_folder_that_was_removed_while_its_job_ran_is_said(host):
    host.store = ContentStore(host.folder / "gone", host.ask)
    answer = host.store.query("module", name="near_app")

    with pytest.raises(ImportError, match=r"gone, was removed while it ran.*set TMPDIR"):
        host.store.content(answer["digest"])


class TestOffer:
    def test_what_lies_below_the_working_directory_is_offered_without_being_imported(self, program):
        names = CodeServer().names()
        assert {"near_app", "near_pkg", "near_space"} <= names
        assert not {"fiber", "fiber_local", "json", "pytest"} & names
        assert CodeServer().module("near_pkg.inner")["path"] == str(program / "near_pkg/inner.py")
        assert not [name for name in sys.modules if name.startswith("near_")]

    def test_installed_ones_are_not_wherever_they_are(self, program, monkeypatch):
        monkeypatch.setattr(sys, "path", [str(program / "lib/site-packages"), *sys.path])
        sources = CodeServer()
        for name in ("near_installed", "pytest", "json", "fiber.pool"):
            assert sources.module(name) == {}
        assert "near_installed" not in sources.names()

    def test_ignored_ones_are_named_with_the_reason(self, program):
        reason = [program / "near_hidden.py", program / ".gitignore", "near_hidden.py"]
        assert CodeServer().module("near_hidden") == {"ignored": [str(part) for part in reason]}

    @pytest.mark.parametrize("name", ["", "near_none", "../near_app", "near_pkg.none", "a-b", "x."])
    def test_others_are_nothing(self, program, name):
        assert CodeServer().module(name) == {}

    @pytest.mark.parametrize(
        "path", ["../near_app.py", "/etc/passwd", "data/../../.gitignore", "data/secret.key", "no"]
    )
    def test_files_outside_a_package_and_ignored_ones_are_nothing(self, program, path):
        found = CodeServer().answer({"query": "file", "name": "near_pkg", "path": path})
        assert json.loads(found) == {}

    def test_content_that_was_not_offered_is_not_sent(self, program):
        digest = digest_of((program / "near_app.py").read_bytes())
        sources = CodeServer()
        assert sources.answer({"query": "content", "digest": digest}) == b""
        sources.module("near_app")
        assert sources.answer({"query": "content", "digest": digest}) == b"VALUE = 1\n"

    def test_questions_that_make_no_sense_get_an_empty_answer(self, program):
        sources = CodeServer()
        answers = []
        for question in (b"nonsense", b"{}", b'{"query": "content"}', b"[]"):
            sources.submit(question, answers.append)
        sources.close()
        assert answers == [b"{}"] * 4


class TestImports:
    def test_modules_packages_and_namespaces_come_once_for_all_processes_of_a_job(self, host):
        assert importlib.import_module("near_pkg").VALUE == 2
        assert importlib.import_module("near_space.deep.er").VALUE == 3
        before = len(host.contents())
        for _ in range(2):
            assert importlib.import_module("near_app").VALUE == 1
            del sys.modules["near_app"]
        assert len(host.contents()) == before + 1
        # and nobody else's
        assert (host.folder / "code").stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("text", ["VALUE = 1\n", "VALUE = 'stale'\n"])
    def test_a_file_that_this_host_has_is_used_where_it_is_the_same(
        self, host, program, tmp_path, monkeypatch, text
    ):
        own = tmp_path / "own"
        own.mkdir()
        monkeypatch.setattr(sys, "path", [str(own), *sys.path])
        (own / "near_app.py").write_text(text)
        module = importlib.import_module("near_app")
        is_same = text == FILES["near_app.py"]
        assert module.VALUE == 1
        assert module.__file__ == str((own if is_same else program) / "near_app.py")
        assert len(host.contents()) == (0 if is_same else 1)

    def test_others_cost_no_question(self, host):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_anywhere")
        assert importlib.util.find_spec("no_such_module_anywhere") is None
        assert host.asked == []

    def test_tracebacks_show_lines(self, host, program):
        module = importlib.import_module("near_fails")
        (program / "near_fails.py").unlink()
        linecache.checkcache()
        with pytest.raises(KeyError) as caught:
            module.fail()
        text = "".join(traceback.format_exception(caught.value))
        assert "raise KeyError('a line of its own')" in text

    def test_one_that_is_changed_on_the_way_is_an_error(self, host, program):
        query = host.store.query("module", name="near_app")
        (program / "near_app.py").write_text("VALUE = 9\n")
        with pytest.raises(ImportError, match="changed while it was sent"):
            host.store.content(query["digest"])

    def test_extensions_come_as_files(self, host, program):
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        (program / f"near_fast{suffix}").write_bytes(b"no real one")
        importlib.invalidate_caches()
        spec = CodeFinder(frozenset({"near_fast"}), host.store).find_spec("near_fast", None)
        assert Path(spec.origin).read_bytes() == b"no real one"
        assert Path(spec.origin).parent == host.folder / "code"


class TestFiles:
    def test_resources_of_a_package_are_found(self, host):
        importlib.import_module("near_pkg")
        files = importlib.resources.files("near_pkg")
        assert (files / "data" / "table.csv").read_text() == "a,b\n"
        assert sorted(one.name for one in files.joinpath("data").iterdir()) == ["table.csv"]
        assert files.joinpath("data").is_dir()
        assert not files.joinpath("data").is_file()
        with files.joinpath("data/table.csv").open() as stream:
            assert stream.readline() == "a,b\n"
        with importlib.resources.as_file(files / "data" / "table.csv") as path:
            assert Path(path).read_text() == "a,b\n"
        assert pkgutil.get_data("near_pkg", "data/table.csv") == b"a,b\n"

    @pytest.mark.parametrize("name", ["none.csv", "data/secret.key"])
    def test_those_that_are_not_offered_are_missing(self, host, name):
        importlib.import_module("near_pkg")
        with pytest.raises(FileNotFoundError):
            (importlib.resources.files("near_pkg") / name).read_bytes()
        with pytest.raises(FileNotFoundError):
            pkgutil.get_data("near_pkg", name)


@pytest.mark.parametrize(
    "name,words",
    [
        ("no_such_module_anywhere", "no module named 'no_such_module_anywhere' on "),
        ("no_such_module_anywhere", "pip install no_such_module_anywhere"),
        ("near_hidden", "is ignored by {program}/.gitignore (line 'near_hidden.py')"),
        ("near_pkg.none", "has no such module"),
    ],
)
def test_a_module_that_is_not_there_is_explained_once(host, program, name, words):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    host.finder.explain(caught.value)
    host.finder.explain(caught.value)
    assert str(caught.value).count(words.format(program=program)) == 1


def test_the_parents_main_is_run_as_spawn_does(host, program, monkeypatch):
    main = types.ModuleType("__main__")
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, main)
    with pytest.raises(StartError, match="cannot be read"):
        load_main(host.store)
    script = program / "script.py"
    script.write_text("NAME = __name__\ndef f():\n    return __file__\n")
    main.__file__ = str(script)
    load_main(host.store)
    loaded = sys.modules["__main__"]
    assert loaded is sys.modules["__mp_main__"] is not main
    assert (loaded.NAME, loaded.f()) == ("__mp_main__", str(script))
    # and a child of this process is told of it in turn
    found = CodeServer().answer({"query": "main"})
    assert json.loads(found)["digest"] == digest_of(script.read_bytes())


@pytest.fixture
def odd(tmp_path, monkeypatch):
    path = tmp_path / "odd_one.py"
    path.write_text("VALUE = 7\n\ndef where():\n    return __file__\n")
    spec = importlib.util.spec_from_file_location("odd_one", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "odd_one", module)
    return module


def spec_of(name, **answer):
    """What this process finds of a module, or part of one, by the parent's answer."""
    known = frozenset({name.partition(".")[0]})
    finder = module_server.ParentFinder(known, lambda _: json.dumps(answer).encode())
    return finder.find_spec(name, None)


def test_modules_of_the_program_are_described_by_their_files_and_pythons_are_not(odd):
    assert "odd_one" in module_server.own_names()
    assert not {"json", "pytest", "__main__"} & module_server.own_names()
    assert module_server.describe("odd_one") == {"path": odd.__file__, "locations": None}
    assert module_server.describe("json") == module_server.describe("no_such_module") == {}


def test_modules_are_loaded_from_their_files_and_packages_without_one_are_folders(odd, tmp_path):
    spec = spec_of("odd_one", **module_server.describe("odd_one"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.VALUE, module.where()) == (7, odd.__file__)
    spec = spec_of("spread", path=None, locations=[str(tmp_path)])
    assert list(importlib.util.module_from_spec(spec).__path__) == [str(tmp_path)]


def test_what_the_parent_does_not_have_is_not_found():
    assert spec_of("odd_one", path="/not/here/odd.zip/odd_one.py", locations=None) is None
    assert spec_of("ours.part") is None
    # nor is it asked for what it has not named
    finder = module_server.ParentFinder(frozenset({"ours"}), pytest.fail)
    assert finder.find_spec("theirs", None) is None


def test_the_source_of_a_module_inside_an_archive_is_had(tmp_path, monkeypatch):
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("odd_packed.py", "VALUE = 7\n")
    monkeypatch.syspath_prepend(str(archive))
    module = importlib.import_module("odd_packed")
    monkeypatch.setitem(sys.modules, "odd_packed", module)

    assert module_server.source_of("odd_packed") == "VALUE = 7\n"
    assert module_server.source_of("json") is None


IGNORED = [
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
    "an invalid pattern is skipped": "[z-a]\nb.log\n",
}


@pytest.fixture
def folder(tmp_path):
    for name in IGNORED:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def ignored(folder):
    ignore = Ignore(folder)
    return {name for name in IGNORED if ignore.match(folder / name) is not None}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what it is compared with")
@pytest.mark.parametrize("name", CASES)
def test_git_agrees(folder, name):
    (folder / ".gitignore").write_text(CASES[name])
    subprocess.run(["git", "init", "-q", folder], check=True)
    output = subprocess.run(
        ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(IGNORED).encode(),
        capture_output=True,
        check=False,
    ).stdout
    assert ignored(folder) == set(filter(None, output.decode().split("\0")))


def test_the_nearest_file_counts_and_fibers_own_takes_the_place_of_gits(folder):
    (folder / ".gitignore").write_text("*.py\n")
    (folder / "src" / ".gitignore").write_text("!*.py\n")
    assert ignored(folder) == {
        name for name in IGNORED if name.endswith(".py") and not name.startswith("src/")
    }
    (folder / ".fiberignore").write_text("*.txt\n")
    assert ignored(folder) == {"docs/readme.txt", "src/deep/notes.txt"}


@pytest.mark.parametrize(
    "name,why",
    [
        ("build/x.py", ("{folder}/.gitignore", "build/")),
        ("__pycache__/a.pyc", ("", "__pycache__/")),
        ("../build/x.py", None),
    ],
    ids=["a line of the file", "always", "not below"],
)
def test_why_names_the_file_and_the_line(folder, name, why):
    (folder / ".gitignore").write_text("build/\n")
    expected = why and tuple(part.format(folder=folder) for part in why)
    assert Ignore(folder).match(Path(os.path.normpath(folder / name))) == expected
