"""Modules, mains and files that come from the parent, by digest and once."""

import importlib
import importlib.resources
import importlib.util
import json
import linecache
import pkgutil
import sys
import sysconfig
import traceback
import types
from pathlib import Path

import pytest

from fiber._launch.code_finder import CodeFinder, ContentStore, load_main
from fiber._launch.code_server import CodeServer, digest_of
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


class TestOffer:
    def test_what_lies_below_the_working_directory_is_offered(self, program):
        names = CodeServer().names()
        assert {"near_app", "near_pkg", "near_space"} <= names
        assert not {"fiber", "fiber_local", "json", "pytest"} & names

    def test_nothing_is_imported_for_it(self, program):
        assert CodeServer().module("near_pkg.inner")["path"] == str(program / "near_pkg/inner.py")
        assert not [name for name in sys.modules if name.startswith("near_")]

    def test_installed_ones_are_not_wherever_they_are(self, program, monkeypatch):
        monkeypatch.setattr(sys, "path", [str(program / "lib/site-packages"), *sys.path])
        sources = CodeServer()
        assert sources.module("near_installed") == {}
        assert sources.module("pytest") == {}
        assert sources.module("json") == {}
        assert sources.module("fiber.pool") == {}
        assert "near_installed" not in sources.names()

    def test_ignored_ones_are_named_with_the_reason(self, program):
        assert CodeServer().module("near_hidden") == {
            "ignored": [
                str(program / "near_hidden.py"),
                str(program / ".gitignore"),
                "near_hidden.py",
            ]
        }

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
    def test_modules_packages_and_namespaces_come(self, host):
        assert importlib.import_module("near_app").VALUE == 1
        assert importlib.import_module("near_pkg").VALUE == 2
        assert importlib.import_module("near_space.deep.er").VALUE == 3

    def test_what_one_process_got_the_others_of_the_job_have(self, host):
        importlib.import_module("near_app")
        assert len(host.contents()) == 1
        del sys.modules["near_app"]
        importlib.import_module("near_app")
        assert len(host.contents()) == 1

    def test_a_file_that_this_host_has_is_used_where_it_is_the_same(
        self, host, tmp_path, monkeypatch
    ):
        own = tmp_path / "own"
        own.mkdir()
        monkeypatch.setattr(sys, "path", [str(own), *sys.path])
        (own / "near_app.py").write_text("VALUE = 1\n")
        assert importlib.import_module("near_app").__file__ == str(own / "near_app.py")
        assert host.contents() == []

    def test_a_stale_one_is_not(self, host, program, tmp_path, monkeypatch):
        own = tmp_path / "own"
        own.mkdir()
        monkeypatch.setattr(sys, "path", [str(own), *sys.path])
        (own / "near_app.py").write_text("VALUE = 'stale'\n")
        module = importlib.import_module("near_app")
        assert (module.VALUE, module.__file__) == (1, str(program / "near_app.py"))

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

    def test_so_they_are_for_pkgutil(self, host):
        importlib.import_module("near_pkg")
        assert pkgutil.get_data("near_pkg", "data/table.csv") == b"a,b\n"

    @pytest.mark.parametrize("name", ["none.csv", "data/secret.key"])
    def test_those_that_are_not_offered_are_missing(self, host, name):
        importlib.import_module("near_pkg")
        with pytest.raises(FileNotFoundError):
            (importlib.resources.files("near_pkg") / name).read_bytes()
        with pytest.raises(FileNotFoundError):
            pkgutil.get_data("near_pkg", name)


class TestExplanations:
    def explained(self, host, name):
        with pytest.raises(ModuleNotFoundError) as caught:
            importlib.import_module(name)
        host.finder.explain(caught.value)
        host.finder.explain(caught.value)
        return str(caught.value)

    def test_one_that_is_not_installed(self, host):
        text = self.explained(host, "no_such_module_anywhere")
        assert "no module named 'no_such_module_anywhere' on " in text
        assert text.count("pip install no_such_module_anywhere") == 1

    def test_one_that_is_ignored(self, host, program):
        text = self.explained(host, "near_hidden")
        assert f"is ignored by {program / '.gitignore'} (line 'near_hidden.py')" in text

    def test_one_of_a_package_that_is_offered(self, host):
        assert "has no such module" in self.explained(host, "near_pkg.none")


class TestMains:
    @pytest.fixture(autouse=True)
    def _keep(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
        yield
        sys.modules.pop("__mp_main__", None)

    def test_the_parents_main_is_run_as_spawn_does(self, host, program, monkeypatch):
        script = program / "script.py"
        script.write_text("NAME = __name__\ndef f():\n    return __file__\n")
        main = types.ModuleType("__main__")
        main.__file__ = str(script)
        monkeypatch.setitem(sys.modules, "__main__", main)
        load_main(host.store)
        loaded = sys.modules["__main__"]
        assert loaded is sys.modules["__mp_main__"] is not main
        assert (loaded.NAME, loaded.f()) == ("__mp_main__", str(script))
        # and a child of this process is query of it in turn
        found = CodeServer().answer({"query": "main"})
        assert json.loads(found)["digest"] == digest_of(script.read_bytes())

    def test_one_that_is_no_file_is_an_error(self, host, monkeypatch):
        monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
        with pytest.raises(StartError, match="cannot be read"):
            load_main(host.store)


def test_what_a_job_keeps_is_private(host):
    importlib.import_module("near_app")
    assert (host.folder / "code").stat().st_mode & 0o777 == 0o700
