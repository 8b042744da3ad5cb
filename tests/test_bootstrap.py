"""The README's two commands set up what they need, once."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from commands import ran

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The script as a module with a temporary environment, a pip that only notes, and no uv."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VENV = tmp_path / "venv"
    module.STAMP = module.VENV / "stamp"
    module.real_pip = module.pip
    module.calls = []
    module.programs = []

    def make(folder, **_):
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(module, "pip", lambda python, *words: module.calls.append(words))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module, "become", module.programs.append)
    monkeypatch.setattr(module, "make_venv", lambda python: make(module.VENV))
    monkeypatch.chdir(tmp_path)
    return module


def test_each_command_installs_what_it_needs_once_and_becomes_another_program(
    bootstrap, monkeypatch
):
    bootstrap.main(["train", "--seed", "7"])

    ((*_, core, _, local),) = bootstrap.calls
    assert core == f"{ROOT / 'fiber_core'}[examples]"
    assert local == str(ROOT / "plugins/fiber_local")
    assert bootstrap.programs == [
        [str(bootstrap.VENV / "bin/python"), str(ROOT / "examples/es_cartpole.py"), "--seed", "7"]
    ]
    for command in ("train", "test", "train"):
        bootstrap.main([command])
    _, test = bootstrap.calls
    assert test[2].endswith("[dashboard,examples,joblib,otel,prometheus,testing]")
    assert any(word.startswith("pytest-xdist") for word in test)
    # changed requirements
    monkeypatch.setattr(bootstrap, "fingerprint", lambda: "another")
    bootstrap.main(["train"])
    assert len(bootstrap.calls) == 3


@pytest.mark.parametrize(
    "words, part",
    [
        (["-x"], ["--part", "quick", "-x"]),
        (["-x", "--all"], ["-x"]),
        (["--part", "rest"], ["--part", "rest"]),
    ],
    ids=["quick", "all", "rest"],
)
def test_test_becomes_pytest_in_the_checkout(bootstrap, words, part):
    bootstrap.main(["test", *words])

    several = ["-m", "pytest", "-n", "4", "--dist", "loadfile"]
    told = ["--progress", "-o", "console_output_style=classic"]
    assert bootstrap.programs[0][1:] == [*several, *told, *part]
    assert Path.cwd() == ROOT


def test_a_failure_of_pip_is_told_with_its_command(bootstrap, monkeypatch, capsys):
    def fail(python, *words):
        raise subprocess.CalledProcessError(1, ["pip", *words])

    monkeypatch.setattr(bootstrap, "pip", fail)

    assert bootstrap.main(["train"]) == 1
    assert "setting up failed: pip install" in capsys.readouterr().err
    assert bootstrap.read_stamp() == []


@pytest.mark.parametrize(
    "words, python, told",
    [
        ([], sys.version_info, "bootstrap.py train"),
        (["deploy"], sys.version_info, "bootstrap.py train"),
        (["test"], (3, 8, 18), "Python 3.10 or later is needed"),
    ],
    ids=["nothing", "an unknown command", "an old Python"],
)
def test_what_it_cannot_do_is_told(bootstrap, monkeypatch, words, python, told, capsys):
    monkeypatch.setattr(bootstrap.sys, "version_info", python)

    assert bootstrap.main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_uv_installs_where_it_is_and_pip_where_it_cannot(bootstrap, monkeypatch, tmp_path, code):
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/told\nexit {code}\n')
    uv.chmod(0o755)
    monkeypatch.setattr(bootstrap.shutil, "which", {"uv": str(uv)}.get)

    bootstrap.main(["train"])

    told = (tmp_path / "told").read_text()
    assert told.startswith("pip install -e") and str(bootstrap.VENV / "bin" / "python") in told
    assert len(bootstrap.calls) == code


@pytest.mark.timeout(300)
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

    done = ran([sys.executable, "-B", "-c", script])

    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "venv").glob("lib/python*/site-packages/pip"))


def test_what_pip_is_at_is_told(bootstrap, capsys, monkeypatch):
    site = bootstrap.VENV / "lib" / "python3" / "site-packages"
    (site / "pip.dist-info").mkdir(parents=True)
    installation = bootstrap.Installation()
    shares = [installation.state()[0]]
    for line in ("Collecting attrs\n", "Collecting rich\n", "  Using cached rich.whl\n"):
        installation.hear(line)
        shares.append(installation.state()[0])
    assert installation.state()[1] == "Collecting rich"
    installation.hear("Installing collected packages: attrs, rich\n")
    for name in ("attrs", "rich"):
        shares.append(installation.state()[0])
        (site / f"{name}.dist-info").mkdir()

    assert installation.state() == (0.95, "2 of 2 distributions installed")
    assert shares == sorted(shares) and 0 == shares[0] < shares[1] < shares[-1] < 0.95
    installation.has_ended = True
    assert installation.state() == (1.0, "installed")


def test_what_pip_said_is_printed_where_it_failed(bootstrap, tmp_path, monkeypatch, capsys):
    script = "import sys; print('no such distribution'); sys.exit('-m' in sys.argv)"
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{script}\n")
    (tmp_path / "python").chmod(0o755)

    with pytest.raises(subprocess.CalledProcessError):
        bootstrap.real_pip(tmp_path / "python", "install")

    assert capsys.readouterr().err == "no such distribution\n"
