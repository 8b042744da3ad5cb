"""``fiber plugin``: a new plugin is whole and passes the kit at once, and a check reports it."""

import ast
import json
import os
import re
import sys

import pytest

import soak
from commands import ran
from distributions import Site
from fiber.cli.plugin import NewPlugin, create, show_progress
from fiber.exceptions import FiberError

BAD_NAMES = ("", "Cart", "cart_x", "-cart", "cart-", "1cart", "a/b", "kärt")


@pytest.mark.parametrize(
    "plugin",
    [NewPlugin("two-words"), NewPlugin("two-words", "kind"), NewPlugin("two-words", batch=True)],
)
def test_nothing_of_the_templates_is_left(tmp_path, plugin):
    for path in create(plugin, tmp_path):
        text = path.read_text()
        assert "{{" not in text
        assert "__module__" not in str(path)
        if path.suffix == ".py":
            ast.parse(text)


@pytest.mark.parametrize(
    "names, told",
    [
        *[((name,), "no name for a plugin") for name in BAD_NAMES],
        *[(("spark", kind), "no kind of devices") for kind in ("two words", "Spark", "1", "")],
    ],
)
def test_a_name_or_kind_that_will_not_do_is_refused(names, told):
    with pytest.raises(FiberError, match=told):
        NewPlugin(*names)


def test_a_batch_system_offers_no_devices_by_itself():
    with pytest.raises(FiberError, match="one after the other"):
        NewPlugin("pbs", "gpu", batch=True)


def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(FiberError, match="not empty; name another one with --directory"):
        create(NewPlugin("cart"), tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(FiberError, match="cannot be written: Not a directory"):
        create(NewPlugin("cart"), tmp_path / "file" / "below")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A backend and a resource provider as they were made, installed: their environment."""
    root = tmp_path_factory.mktemp("installed")
    site = Site(root / "site")
    path = [str(site.folder)]
    for plugin in (NewPlugin("cart"), NewPlugin("sparks", "spark"), NewPlugin("pbs", batch=True)):
        folder = root / plugin.distribution
        create(plugin, folder)
        module = plugin.placeholders["module"]
        site.add(plugin.distribution, entry_points={plugin.name: f"{module}.plugin"})
        path.append(str(folder / "src"))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_CURRENT")}
    return root, {**environ, "PYTHONPATH": os.pathsep.join(path)}


def run(*words, cwd, environ):
    return ran([sys.executable, "-m", *words], cwd=cwd, env=environ)


def fiber_command(*words, installed):
    root, environ = installed
    return run("fiber.cli.main", *words, cwd=root, environ=environ)


def test_new_prints_its_files_and_the_next_steps(fiber, tmp_path):
    lines = fiber.lines("plugin", "new", "cart")

    assert "wrote fiber-cart/src/fiber_cart/backend.py" in lines
    assert lines[-1] == (
        'next: pip install -e "fiber-cart[test]", pytest fiber-cart, fiber plugin check cart'
    )
    fiber.lines("plugin", "new", "spark", "--resource", "spark", "--directory", "here")
    assert (tmp_path / "here" / "src" / "fiber_spark" / "provider.py").exists()
    fiber.lines("plugin", "new", "pbs", "--batch")
    assert (tmp_path / "fiber-pbs" / "src" / "fiber_pbs" / "system.py").exists()


def test_check_knows_no_stranger(fiber):
    assert "unknown backend 'nobody'" in fiber.fails("plugin", "check", "nobody")


#: what a batch system's own questions and commands decide: the rest is the parts that all of them
#: share, whose whole kit the backends of this repository run
OF_A_SYSTEM = (
    "asked or capacity or cleanup or exact or exist or listed or refused or sigterm or unknown"
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, chosen", [("cart", ""), ("pbs", OF_A_SYSTEM)], ids=["cart", "pbs"])
def test_the_tests_of_a_new_backend_pass(installed, name, chosen):
    root, environ = installed
    words = ("--fiber-kit-levels", "2", "-k", "" if soak.is_full() else chosen)

    done = run("pytest", "-q", *words, cwd=root / f"fiber-{name}", environ=environ)

    assert done.returncode == 0, done.stdout


def test_check_runs_levels_shows_them_and_writes_them_down(installed, tmp_path):
    file = tmp_path / "results.json"

    done = fiber_command(
        "plugin", "check", "cart", "--levels", "1,6", "--json", str(file), installed=installed
    )

    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["LEVEL", "ABOUT", "PASSED", "SKIPPED", "FAILED", "SECONDS"]
    assert [row[0] for row in rows] == ["1", "6"]
    assert rows[1][2:5] == ["1", "0", "0"]
    count = sum(int(cell) for row in rows for cell in row[2:5])
    lines = done.stderr.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        f"{n}/{count}" for n in range(1, count + 1)
    ]
    assert re.fullmatch(r".* test_any_order_of_calls_tells_the_truth: passed, \d+\.\d s", lines[-1])
    subjects = json.loads(file.read_text())["subjects"]
    assert {(subject["kit"], subject["name"]) for subject in subjects} == {
        ("backend", "cart"),
        ("plugin", "fiber_cart.plugin"),
    }


def test_check_runs_the_kit_for_devices(installed):
    done = fiber_command("plugin", "check", "spark", installed=installed)

    assert done.returncode == 0, done.stdout + done.stderr


def test_check_reports_failures_by_its_exit_code(installed):
    source = installed[0] / "fiber-cart" / "src" / "fiber_cart" / "plugin.py"
    before = source.read_text()
    source.write_text(before.replace('summary="processes of this machine"', 'summary=""'))
    try:
        done = fiber_command("plugin", "check", "cart", "--levels", "1", installed=installed)
    finally:
        source.write_text(before)

    assert done.returncode == 1
    assert (
        "failed: fiber_cart.plugin: test_its_backends_say_what_they_are: "
        "AssertionError: backend 'cart' needs a summary"
    ) in done.stdout


def test_a_terminal_shows_which_test_runs_and_failures_at_once(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    show_progress(
        [
            {"tests": 2},
            {"begins": "test_one"},
            {"ended": "test_one", "outcome": "failed", "seconds": 1.0},
            {"begins": "test_two"},
            {"ended": "test_two", "outcome": "passed", "seconds": 1.0},
        ]
    )

    shown = capsys.readouterr().err
    assert "failed: test_one" in shown
    assert "2/2" in shown
    assert "test_two" in shown


WITNESS = """
from fiber.testing import HostWitness

class CartWitness(HostWitness):
    def __init__(self, backend):
        self.backend = backend

    def left(self, run_id):
        raise LookupError(f"a ghost of {self.backend.name}")
"""


def test_the_witness_that_a_plugin_names_is_asked(installed):
    root, environ = installed
    folder = root / "fiber-cart" / "src" / "fiber_cart"
    source = folder / "plugin.py"
    before = source.read_text()
    named = 'witness="fiber_cart.ghosts:CartWitness", summary='
    source.write_text(before.replace("summary=", named))
    (folder / "ghosts.py").write_text(WITNESS)
    target = {"backend": "cart", "kind": None, "module": None, "image": None, "python": None}
    kit = ("--pyargs", "fiber.testing.test_installed", "-k", "test_close_may_come_twice")
    try:
        done = run(
            *("pytest", "-q", "-p", "no:cacheprovider", "--noconftest", *kit),
            cwd=root,
            environ={**environ, "KIT_TARGET": json.dumps(target)},
        )
    finally:
        source.write_text(before)

    assert "a ghost of cart" in done.stdout, done.stdout
