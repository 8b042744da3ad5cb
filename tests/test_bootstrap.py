"""The README's two commands set up what they need, once."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The script as a module whose environment is a temporary one and whose pip only notes."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VENV = tmp_path / "venv"
    module.STAMP = module.VENV / "stamp"
    module.calls = []
    module.programs = []

    def make(folder, **_):
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(module, "pip", lambda python, *words: module.calls.append(words))
    monkeypatch.setattr(module, "become", module.programs.append)
    monkeypatch.setattr(module, "make_venv", lambda python: make(module.VENV))
    monkeypatch.chdir(tmp_path)
    return module


def test_train_installs_what_the_examples_need_and_becomes_the_main_job(bootstrap):
    bootstrap.main(["train", "--seed", "7"])

    ((*_, core, _, local),) = bootstrap.calls
    assert core == f"{ROOT / 'fiber_core'}[examples]"
    assert local == str(ROOT / "plugins/fiber_local")
    assert bootstrap.programs == [
        [str(bootstrap.VENV / "bin/python"), str(ROOT / "examples/es_cartpole.py"), "--seed", "7"]
    ]


def test_test_becomes_pytest_in_the_checkout(bootstrap):
    bootstrap.main(["test", "-x"])

    assert bootstrap.programs[0][1:] == ["-m", "pytest", "-n", "4", "--dist", "loadfile", "-x"]
    assert Path.cwd() == ROOT


def test_a_second_call_installs_nothing(bootstrap):
    bootstrap.main(["train"])
    bootstrap.main(["train"])

    assert len(bootstrap.calls) == 1


def test_the_other_subcommand_adds_what_it_needs(bootstrap):
    bootstrap.main(["train"])
    bootstrap.main(["test"])
    bootstrap.main(["train"])

    train, test = bootstrap.calls
    assert train[3].endswith("[examples]")
    assert test[3].endswith("[examples,joblib,testing]")
    assert any(word.startswith("pytest-xdist") for word in test)


def test_changed_requirements_set_it_up_anew(bootstrap, monkeypatch):
    bootstrap.main(["train"])
    monkeypatch.setattr(bootstrap, "fingerprint", lambda: "another")
    bootstrap.main(["train"])

    assert len(bootstrap.calls) == 2


def test_a_failure_of_pip_is_told_with_its_command(bootstrap, monkeypatch, capsys):
    def fail(python, *words):
        raise subprocess.CalledProcessError(1, ["pip", *words])

    monkeypatch.setattr(bootstrap, "pip", fail)

    assert bootstrap.main(["train"]) == 1
    assert "setting up failed: pip install" in capsys.readouterr().err
    assert bootstrap.read_stamp() == []


@pytest.mark.parametrize("words", [[], ["deploy"]])
def test_anything_else_is_answered_with_the_usage(bootstrap, words, capsys):
    assert bootstrap.main(words) == 2
    assert "bootstrap.py train" in capsys.readouterr().err


def test_an_old_python_is_told_which_one_is_needed(bootstrap, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 8, 18))

    assert bootstrap.main(["test"]) == 2
    assert "Python 3.10 or later is needed" in capsys.readouterr().err


def test_a_python_without_ensurepip_lends_its_own_pip(tmp_path):
    script = (
        "import sys; sys.modules['ensurepip'] = None\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import bootstrap, pathlib\n"
        f"bootstrap.VENV = pathlib.Path({str(tmp_path / 'venv')!r})\n"
        "bootstrap.STAMP = bootstrap.VENV / 'stamp'\n"
        "python = bootstrap.VENV / 'bin' / 'python'\n"
        "bootstrap.make_venv(python)\n"
        "bootstrap.pip(python, 'list')\n"
    )

    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "venv").glob("lib/python*/site-packages/pip"))
