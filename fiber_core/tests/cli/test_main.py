"""The command as a whole: its help, its exit codes, its errors in one line, its log."""

import logging
import sys

import click
import pytest

import fiber as package
from commands import ran
from distributions import Answers
from fiber.cli import options
from fiber.exceptions import BackendUnavailableError, ConfigError
from fiber.model import Volume


def acting(act):
    """A plugin with one command, ``act``."""
    return Answers("fiber_commands", [click.Command("act", callback=act)])


def raising(error):
    def act():
        raise error

    return act


def python(*words):
    return ran([sys.executable, "-W", "ignore", *words], check=True)


class TestHelp:
    @pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"]])
    def test_it_loads_no_library_and_the_version_asks_no_plugin(self, words):
        code = (
            "import atexit, sys; from fiber.cli.main import main; sys.argv[0] = 'fiber'; "
            "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
        )
        done = python("-c", code, *words)
        loaded = done.stderr.split()

        libraries = {"rich", "pynng", "cryptography", "psutil", "asyncio"}
        assert libraries & {name.split(".")[0] for name in loaded} == set()
        assert "click" in loaded
        assert ("fiber._plugins.manager" in loaded) == (words != ["--version"])
        assert (done.stdout == f"fiber {package.__version__}\n") == (words == ["--version"])


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
        fiber.extra.append(acting(raising(error)))

        assert fiber.fails("act", code=code) == told

    @pytest.mark.parametrize("way", ["option", "variable"])
    def test_debug_shows_the_traceback_as_well(self, fiber, monkeypatch, way):
        fiber.extra.append(acting(raising(BackendUnavailableError("no answer\x1bc"))))
        if way == "variable":
            monkeypatch.setenv("FIBER_DEBUG", "yes")

        told = fiber.fails(*(["--debug"] if way == "option" else []), "act")

        assert "Traceback (most recent call last)" in told
        assert told.endswith("fiber: no answer\\x1bc\n")
        assert "\x1b" not in told

    def test_an_error_that_is_not_fibers_is_not_hidden(self, fiber):
        fiber.extra.append(acting(raising(ZeroDivisionError())))

        assert isinstance(fiber("act").exception, ZeroDivisionError)


class TestLog:
    @pytest.mark.parametrize(
        "name, text", [("fiber.x", "beware\x1bc"), ("fiber", "fiber: beware\x1bc")]
    )
    def test_warnings_go_to_stderr_with_the_programs_name_once(self, fiber, name, text):
        fiber.extra.append(acting(lambda: logging.getLogger(name).warning(text)))

        done = fiber("act")

        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "fiber: beware\\x1bc\n")


def test_characters_that_the_terminal_has_not_are_no_error(monkeypatch):
    code = (
        "import sys; from fiber.cli.main import cli, main; sys.argv = ['fiber', 'act']; "
        "import click; cli.add_command(click.Command('act', callback=lambda: print('\\u2603')))"
        "; cli.get_command = lambda ctx, name: cli.commands[name]; main()"
    )
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    assert python("-c", code).stdout == "\\u2603\n"


@pytest.mark.parametrize(
    "read,word,value",
    [
        (options.cpus, "500m", 0.5),
        (options.megabytes, "4Gi", 4096),
        (options.volume, "nfs", Volume(source="nfs", path="/persistent")),
        (options.volume, "nfs:/data", Volume(source="nfs", path="/data")),
        (options.volume, "/host/data:/data", Volume(source="/host/data", path="/data")),
        (options.volume, "nfs:/data:ro", Volume(source="nfs", path="/data", read_only=True)),
        (options.volume, "nfs:ro", Volume(source="nfs", path="/persistent", read_only=True)),
        (options.volume, "nfs:/data:rw", Volume(source="nfs", path="/data")),
        (options.variable, "A=", ("A", "")),
        (options.variable, "OURS", ("OURS", "a b")),
        (options.variable, "A=b=c", ("A", "b=c")),
        (options.device, "tpu", ("tpu", 1)),
        (options.device, "tpu=4", ("tpu", 4)),
    ],
)
def test_words_of_options_are_read(monkeypatch, read, word, value):
    monkeypatch.setenv("OURS", "a b")

    assert read(word) == value


@pytest.mark.parametrize(
    "read,word,told",
    [
        (options.cpus, "two", "positive number of CPUs"),
        (options.megabytes, "12x", "Ki, Mi, Gi"),
        (options.volume, ":/data", "is no volume"),
        (options.volume, "nfs:data", "is no volume"),
        (options.volume, "nfs:/data:rx", "is no volume"),
        (options.variable, "=1", "is no variable"),
        (options.variable, "SURELY_NOT_SET", "is not set here"),
        (options.device, "tpu=0", "KIND=NUMBER"),
        (options.device, "tpu=many", "KIND=NUMBER"),
        (options.device, "=2", "KIND=NUMBER"),
    ],
)
def test_malformed_values_are_errors_with_what_is_allowed(read, word, told):
    with pytest.raises(click.BadParameter, match=told):
        read(word)
