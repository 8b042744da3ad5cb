"""The command as a whole: its help, its exit codes, its errors in one line, its log."""

import io
import logging
import subprocess
import sys

import click
import pytest

import fiber as package
from fiber.cli.errors import Failure, after_signal, is_true
from fiber.exceptions import BackendUnavailableError, ConfigError, FiberError
from fiber.hookspecs import hookimpl


class Adds:
    """A plugin with one command, ``act``."""

    def __init__(self, act):
        self._act = act

    @hookimpl
    def fiber_commands(self):
        return [click.Command("act", callback=self._act)]


def raising(error):
    def act():
        raise error

    return act


def python(*words):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words], capture_output=True, text=True, check=True
    )


class TestHelp:
    def test_the_version_is_one_line(self, fiber):
        assert fiber.lines("--version") == [f"fiber {package.__version__}"]

    def test_help_lists_the_commands_with_what_they_do(self, fiber):
        printed = fiber("--help").stdout

        assert "  run      Start a program as a job.\n" in printed
        assert "  doctor   Check this installation and a backend.\n" in printed

    @pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"]])
    def test_no_library_of_a_backend_or_of_tables_is_loaded_for_it(self, words):
        code = (
            "import atexit, sys; from fiber.cli.main import main; sys.argv[0] = 'fiber'; "
            "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
        )
        loaded = {name.split(".")[0] for name in python("-c", code, *words).stderr.split()}

        assert loaded & {"rich", "pynng", "cryptography", "psutil", "asyncio"} == set()
        assert "click" in loaded

    def test_the_version_asks_no_plugin(self):
        code = (
            "import atexit, sys; from fiber.cli.main import main; sys.argv[0] = 'fiber'; "
            "atexit.register(lambda: print('fiber._plugins.manager' in sys.modules)); main()"
        )

        assert python("-c", code, "--version").stdout.split()[-1] == "False"


class TestErrors:
    @pytest.mark.parametrize(
        "error, code, told",
        [
            (BackendUnavailableError("no answer"), 1, "fiber: no answer\n"),
            (ConfigError("bad value"), 2, "fiber: bad value\n"),
            # one without a message is shown by its class
            (BackendUnavailableError(), 1, "fiber: BackendUnavailableError\n"),
            (KeyboardInterrupt(), 130, ""),
        ],
    )
    def test_an_error_is_one_line_and_an_exit_code(self, fiber, error, code, told):
        fiber.extra.append(Adds(raising(error)))

        assert fiber.fails("act", code=code) == told

    def test_an_unknown_command_or_option_is_exit_code_2(self, fiber):
        assert "No such command 'frobnicate'" in fiber.fails("frobnicate", code=2)
        assert "No such option" in fiber.fails("ps", "--frobnicate", code=2)

    @pytest.mark.parametrize("way", ["option", "variable"])
    def test_debug_shows_the_traceback_as_well(self, fiber, monkeypatch, way):
        fiber.extra.append(Adds(raising(BackendUnavailableError("no answer"))))
        if way == "variable":
            monkeypatch.setenv("FIBER_DEBUG", "yes")

        told = fiber.fails(*(["--debug"] if way == "option" else []), "act")

        assert "Traceback (most recent call last)" in told
        assert told.endswith("fiber: no answer\n")

    def test_a_malformed_debug_variable_is_reported_where_settings_are_read(
        self, fiber, monkeypatch
    ):
        monkeypatch.setenv("FIBER_DEBUG", "perhaps")

        told = fiber.fails("ps", code=2)

        assert told.startswith("fiber: bad value 'perhaps' for 'debug' (environment FIBER_DEBUG)")
        assert len(told.splitlines()) == 1

    def test_an_error_that_is_not_fibers_is_not_hidden(self, fiber):
        fiber.extra.append(Adds(raising(ZeroDivisionError())))

        assert isinstance(fiber("act").exception, ZeroDivisionError)


class TestLog:
    @pytest.mark.parametrize("name, text", [("fiber.x", "beware"), ("fiber", "fiber: beware")])
    def test_warnings_go_to_stderr_with_the_programs_name_once(self, fiber, name, text):
        fiber.extra.append(Adds(lambda: logging.getLogger(name).warning(text)))

        done = fiber("act")

        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "fiber: beware\n")

    def test_debug_shows_all_of_it(self, fiber):
        fiber.extra.append(Adds(lambda: logging.getLogger("fiber.x").debug("a detail")))

        assert fiber("act").stderr == ""
        assert "fiber: a detail\n" in fiber("--debug", "act").stderr


def test_the_module_is_the_program_too():
    done = python("-m", "fiber.cli.main", "--version")

    assert done.stdout == f"fiber {package.__version__}\n"


def test_characters_that_the_terminal_has_not_are_no_error(monkeypatch):
    code = (
        "import sys; from fiber.cli.main import cli, main; sys.argv = ['fiber', 'act']; "
        "import click; cli.add_command(click.Command('act', callback=lambda: print('\\u2603')))"
        "; cli.get_command = lambda ctx, name: cli.commands[name]; main()"
    )
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    assert python("-c", code).stdout == "\\u2603\n"


def test_a_failure_prints_its_error_to_the_given_file():
    file = io.StringIO()

    Failure(FiberError("no room")).show(file)

    assert file.getvalue() == "fiber: no room\n"


def test_a_failure_ends_with_1_with_2_for_settings_or_with_its_own_code():
    codes = [
        Failure(FiberError("x")).exit_code,
        Failure(ConfigError("x")).exit_code,
        Failure(FiberError("x"), 127).exit_code,
    ]

    assert codes == [1, 2, 127]


def test_after_a_signal_the_exit_code_is_that_of_shells():
    assert after_signal(15) == 143


@pytest.mark.parametrize("text,meant", [("true", True), ("1", True), ("off", False), ("", False)])
def test_a_variable_means_yes_or_no(text, meant):
    assert is_true(text) is meant


def test_a_variable_that_means_neither_is_no_yes():
    assert is_true("perhaps") is False
