"""Settings: argument over environment over file, typed, validated, each with its origin.

Files are read with the line of each value; keys belong to the core or a backend; text becomes what a
settings class names.
"""

import contextlib
import enum
import logging
import math
import os
from pathlib import Path
from typing import Any, Literal, Optional

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import require
from fiber._config.convert import (
    SettingsCollector,
    build,
    convert,
    key_prefix,
    parse_cpu,
    parse_memory,
    render,
    settings_of,
)
from fiber._config.settings import find_file, load_config
from fiber._config.sources import FileSettings, Origin, OriginKind, RawValue, read_file
from fiber.exceptions import ConfigError
from fiber.model import BackendInfo


@attrs.frozen(kw_only=True)
class Settings:
    namespace: str = attrs.field(default="default", metadata={"help": "where pods live"})
    token: str = attrs.field(default="", repr=False, metadata={"secret": True})
    sweep: bool = True


K8S = BackendInfo(name="k8s", load=lambda _: None, config=Settings)
BARE = BackendInfo(name="bare", load=lambda _: None)


def load(tmp_path, arguments=None, environ=None, file=None, **more):
    if file is not None:
        (tmp_path / ".fiberconfig").write_text(file)
    return load_config(arguments or {}, environ or {}, tmp_path, **more)


class TestPrecedence:
    def test_argument_over_environment_over_file(self, tmp_path):
        config = load(
            tmp_path,
            {"cpu": 3},
            {"FIBER_CPU": "2", "FIBER_IMAGE": "env:1"},
            "cpu = 1\nimage = file:1\nmemory = 1Gi\n",
        )

        assert (config.cpu, config.image, config.memory) == (3.0, "env:1", 1024)
        assert str(config.origin("cpu")) == "argument cpu to fiber.init"
        assert str(config.origin("image")) == "environment FIBER_IMAGE"
        assert str(config.origin("memory")) == f"{tmp_path / '.fiberconfig'}:3"

    def test_none_in_the_environment_takes_back_what_the_file_set(self, tmp_path):
        config = load(tmp_path, environ={"FIBER_CPU": "none", "FIBER_MEMORY": "none"}, file="cpu=2")

        assert (config.cpu, config.memory) == (None, None)


@pytest.mark.parametrize(
    "key, value",
    [
        ("log_level", "loud"),
        ("cpu", "0"),
        ("memory", "4Xi"),
        ("start_timeout", "0"),
        ("lease", "-1"),
        ("max_frame", "100"),
        ("max_frame", str(2**31)),
        ("max_attempts", "0"),
    ],
)
def test_a_bad_value_names_the_key_and_where_it_was_set(tmp_path, key, value):
    variable = f"FIBER_{key.upper()}"
    text = rf"bad value '{value}' for '{key}' \(environment {variable}\): ."
    with pytest.raises(ConfigError, match=text):
        load(tmp_path, environ={variable: value})
    with pytest.raises(ConfigError, match=rf"'{key}' \(.*fiberconfig:2\)"):
        load(tmp_path, file=f"# here\n{key} = {value}\n")
    # as a bad argument is elsewhere
    with pytest.raises(ValueError, match=rf"'{key}' \(argument {key} to fiber.init\)"):
        load(tmp_path, {key: value})


class TestBackendKeys:
    def test_settings_of_the_chosen_backend_come_from_all_three_places(self, tmp_path):
        config = load(
            tmp_path,
            {"k8s_sweep": False},
            {"FIBER_K8S_TOKEN": "abc"},
            "[k8s]\nnamespace = rl\n",
            backend_info=K8S,
        )

        assert config.settings == Settings(namespace="rl", token="abc", sweep=False)
        assert config.backend_name == "k8s"
        assert str(config.origin("k8s_namespace")).endswith(".fiberconfig:2")

    def test_settings_of_other_backends_may_be_there_and_must_be_right(self, tmp_path):
        both = {"backend_info": BARE, "backends": [BARE, K8S]}

        assert load(tmp_path, {"k8s_sweep": "no"}, **both).settings is None
        with pytest.raises(ConfigError, match="k8s_sweep"):
            load(tmp_path, {"k8s_sweep": "maybe"}, **both)
        load(tmp_path, environ={"FIBER_K8S_SWEEP": "maybe"}, **both)


class TestUse:
    def test_a_secret_is_never_shown(self, tmp_path):
        config = load(tmp_path, {"k8s_token": "hunter2"}, backend_info=K8S)

        assert "hunter2" not in repr(config)
        assert "hunter2" not in repr(config.explain())
        assert "hunter2" not in repr(config.to_environ())
        assert config.settings.token == "hunter2"

    def test_a_job_gets_what_was_set_and_reads_the_same(self, tmp_path):
        (tmp_path / "job").mkdir()
        arguments = {"env": ["A,B", "C"], "debug": True, "log_file": "/x", "k8s_sweep": False}
        config = load(tmp_path, arguments, file="[k8s]\nnamespace=rl\n", backend_info=K8S)

        environ = config.to_environ()

        assert set(environ) == {
            "FIBER_ENV",
            "FIBER_DEBUG",
            "FIBER_LOG_FILE",
            "FIBER_K8S_SWEEP",
            "FIBER_K8S_NAMESPACE",
        }
        assert load_config({}, environ, tmp_path / "job", K8S) == config


@attrs.frozen
class OfBackend:
    speed: int = 1
    namespace: str = ""


def info(name, **fields):
    return BackendInfo(name=name, load=lambda _: None, config=OfBackend, **fields)


BLUE, RED, PALE = info("blue", aliases=("azure",)), info("red"), info("blue-pale")
CORE = ("cpu", "image", "log_level")


@pytest.fixture
def collector():
    return SettingsCollector(CORE, [BLUE, RED, PALE], BLUE)


def file(**sections):
    origin = Origin(OriginKind.FILE, "f:1")
    return FileSettings(
        path="f",
        sections={
            n: {k: RawValue(v, origin) for k, v in keys.items()} for n, keys in sections.items()
        },
        origins=dict.fromkeys(sections, origin),
    )


def found(collector, owner):
    return {key: raw.value for key, raw in collector.by_owner[owner].items()}


def test_keys_go_to_the_core_and_to_backends_by_prefix_of_which_the_longer_counts(collector):
    collector.add_arguments({"cpu": 1, "blue_speed": 2, "red_speed": 3, "blue_pale_speed": 4})
    # not set
    collector.add_arguments({"cpu": None, "imgae": None})

    assert found(collector, "") == {"cpu": 1}
    assert found(collector, "blue") == {"speed": 2}
    assert found(collector, "red") == {"speed": 3}
    assert found(collector, "blue-pale") == {"speed": 4}
    assert key_prefix("blue-pale") == "blue_pale_"


class TestUnknown:
    @pytest.mark.parametrize(
        "section, key, told",
        [
            ("default", "imgae", r"did you mean 'image'\? allowed .*blue_namespace"),
            # of backends in use or not
            ("blue", "sped", r"did you mean 'blue_speed'\? allowed are blue_speed, blue_nam"),
            ("red", "sped", r"did you mean 'red_speed'\? allowed are red_speed, red_nam"),
        ],
    )
    def test_an_unknown_key_is_an_error_with_its_place_and_the_nearest(
        self, collector, section, key, told
    ):
        name = key if section == "default" else f"{section}_{key}"
        with pytest.raises(ConfigError, match=rf"'{name}' \(f:1\): {told}"):
            collector.add_file(file(**{section: {key: "x"}}))
        argument = rf"'{name}' \(argument {name} to fiber.init\): {told}"
        with pytest.raises(ConfigError, match=argument):
            collector.add_arguments({name: "x"})

    @pytest.mark.parametrize(
        "section, told",
        [
            ("bleu", r"unknown section \[bleu\] \(f:1\); did you mean \[blue\]"),
            # aliases
            ("azure", r"\[azure\] .*did you mean \[blue\]"),
            ("kubernetes", r"\[kubernetes\] .*did you mean \[k8s\]"),
        ],
    )
    def test_an_unknown_section_is_an_error_with_the_nearest(self, collector, section, told):
        with pytest.raises(ConfigError, match=told):
            collector.add_file(file(**{section: {"speed": "1"}}))

    def test_keys_of_a_known_backend_that_is_not_installed_are_left_alone(self, collector):
        collector.add_file(file(default={"docker_network": "x"}, k8s={"namespace": "x"}))
        collector.add_arguments({"ssh_hosts": ["a"]})

        assert set(collector.by_owner) == {"", "blue", "red", "blue-pale"}
        assert not any(collector.by_owner.values())

    def test_until_the_backend_is_chosen_only_the_cores_keys_are_looked_at(self, caplog):
        early = SettingsCollector(CORE, [], None)
        early.add_file(file(default={"imgae": "x", "cpu": "1"}, bleu={"speed": "x"}))
        early.add_environ({"FIBER_IMGAE": "x"})
        early.add_arguments({"imgae": "x", "image": "y"})

        assert found(early, "") == {"cpu": "1", "image": "y"}
        assert caplog.text == ""


class TestEnvironment:
    def warnings(self, collector, caplog, **environ):
        with caplog.at_level(logging.WARNING, "fiber.config"):
            collector.add_environ(environ)
        return caplog.messages

    @pytest.mark.parametrize(
        "name, told",
        [
            ("FIBER_IMAEG", "FIBER_IMAEG is no setting of fiber, ignored (nearest: FIBER_IMAGE)"),
            ("FIBER_BLUE_SPED", "nearest: FIBER_BLUE_SPEED"),
            # of a service named fiber
            ("FIBER_PORT", "FIBER_PORT is no setting of fiber"),
            ("FIBER_SERVICE_HOST", "FIBER_SERVICE_HOST is no setting of fiber"),
        ],
    )
    def test_an_unknown_variable_is_a_warning_with_the_nearest_name(
        self, collector, caplog, name, told
    ):
        (text,) = self.warnings(collector, caplog, **{name: "x"})

        assert told in text
        assert found(collector, "") == {}

    def test_variables_of_other_backends_of_others_and_empty_ones_are_left_alone(
        self, collector, caplog
    ):
        names = ["RED_SPEED", "RED_SPED", "K8S_NAMESPACE", "BOOTSTRAP", "REQUIRE"]
        others = {"HOME": "/x", "FIBERS": "y", "FIBER_CPU": "", "FIBER_XX": ""}
        assert not self.warnings(collector, caplog, **{f"FIBER_{n}": "x" for n in names}, **others)
        assert not any(collector.by_owner.values())


class Colour(enum.Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


class TestConvert:
    @pytest.mark.parametrize(
        "hint, values, wanted",
        [
            (bool, ["true", "True", "1", "YES", " on ", True, 1], True),
            (bool, ["false", "FALSE", "0", "no", "off", False, 0], False),
            (int, ["7", " 7 ", 7, 7.0], 7),
            (int, [" -7 "], -7),
            (float, ["0.5", 0.5], 0.5),
            (float, ["1e3", 1000], 1000.0),
            (list[str], ["a,b", "a, b,", "a\nb", ["a", "b"], ("a", "b")], ["a", "b"]),
            (tuple[str, ...], ["a,b", ["a", "b"], ("a", "b")], ("a", "b")),
            (frozenset[str], ["a,b", ["a", "b"], ("a", "b")], frozenset("ab")),
            (list[int], ["1,2"], [1, 2]),
            (list[int], [""], []),
            (Literal["debug", "warning"], ["WARNING"], "warning"),
            (Literal[1, 2], ["2"], 2),
            (Colour, ["Dark-Blue", Colour.DARK_BLUE], Colour.DARK_BLUE),
            (int | None, ["none"], None),
            (Optional[int], ["", None], None),  # noqa: UP045  the older spelling too
            (Optional[int], ["3"], 3),  # noqa: UP045
            (list[str] | None, [None], None),
            (Any, [{"a": 1}], {"a": 1}),
            (str, ["a b"], "a b"),
            (Path, ["/x/y", Path("/x/y")], Path("/x/y")),
            (Path, ["~/x"], Path.home() / "x"),
        ],
    )
    def test_values_become_what_is_named(self, hint, values, wanted):
        for value in values:
            found = convert(value, hint)
            assert (found, type(found)) == (wanted, type(wanted))

    @pytest.mark.parametrize(
        "hint, values, told",
        [
            (bool, ["maybe", "", 2, 1.0, None, []], "true or false"),
            (int, ["7.5", 7.5, "x", True, None, "", math.nan, math.inf], "whole number"),
            (float, ["nan", "inf", "x", True, None], "a number"),
            (str, [3], "must be text"),
            (Path, [3], "must be a path"),
            (list[int], ["1,x"], "whole number"),
            (list[int], [3], "a list"),
            (Literal["debug", "warning"], ["loud"], "one of debug, warning"),
            (Colour, ["green"], "one of red, dark-blue"),
        ],
    )
    def test_other_values_are_errors_with_what_is_allowed(self, hint, values, told):
        for value in values:
            with pytest.raises(ValueError, match=told):
                convert(value, hint)

    @pytest.mark.parametrize("hint", [dict, int | str, complex, int | str | None])
    def test_a_type_that_settings_cannot_have(self, hint):
        with pytest.raises(TypeError, match="a setting cannot have the type"):
            convert("x", hint)


class TestQuantities:
    def test_memory_is_mb_or_a_quantity_and_cpus_are_numbers_or_thousandths(self):
        sizes = ["4096", 4096, "4Gi", "512Mi", "1M", "2G"]
        assert [parse_memory(size) for size in sizes] == [4096, 4096, 4096, 512, 1, 1908]
        assert [parse_cpu(count) for count in ("2", "500m", 0.25, 3)] == [2.0, 0.5, 0.25, 3.0]

    @pytest.mark.parametrize(
        "parse, values, told",
        [
            (parse_memory, ["0", "-1", "4Xi", "", True, 1.5, "4GiMi"], "memory"),
            (parse_cpu, ["0", "-2", "many", "0m", None, True], "positive number of CPUs"),
        ],
    )
    def test_no_quantities(self, parse, values, told):
        for value in values:
            with pytest.raises(ValueError, match=told):
                parse(value)


@given(
    st.one_of(
        st.tuples(st.booleans(), st.just(bool)),
        st.tuples(st.integers(), st.just(int)),
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.just(float)),
        st.tuples(st.sampled_from(Colour), st.just(Colour)),
        st.tuples(
            st.lists(st.text("abc ,=/", min_size=1).map(str.strip).filter(bool)), st.just(list[str])
        ),
    )
)
def test_what_is_rendered_for_a_job_is_read_back(pair):
    value, hint = pair

    assert convert(render(value), hint) == value


class TestBuild:
    @attrs.frozen(kw_only=True)
    class Settings:
        hosts: list[str]
        port: int = attrs.field(default=22, validator=attrs.validators.in_(range(1, 65536)))
        low: int = 0
        high: int = 9
        token: str = attrs.field(default="", metadata={"secret": True})
        hidden: int = attrs.field(default=0, metadata={"internal": True})

        def __attrs_post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    def build(self, **values):
        origin = Origin(OriginKind.ENVIRONMENT, "FIBER_X")
        return build(self.Settings, {k: RawValue(v, origin) for k, v in values.items()}, "ssh_")

    def test_internal_fields_are_no_settings(self):
        assert "hidden" not in settings_of(self.Settings)
        assert settings_of(dict) == {}

    def test_the_error_for_a_missing_value_has_the_way_to_set_it(self):
        with pytest.raises(ConfigError, match=r"ssh_hosts must be set.*FIBER_SSH_HOSTS"):
            self.build()
        # where nothing is made
        assert build(self.Settings, {}, "ssh_", complete=False) == {}

    @pytest.mark.parametrize(
        "values, told",
        [
            ({"port": "x"}, r"'x' for 'ssh_port' \(environment FIBER_X\): must"),
            ({"port": "0", "low": "1"}, r"bad value '0' for 'ssh_port' \(environment"),
            ({"low": "5", "high": "4"}, r"ssh_low .*ssh_high .*: low is above high"),
        ],
        ids=["conversion", "validator", "values that do not go together"],
    )
    def test_the_error_for_a_bad_value_names_keys_and_origin(self, values, told):
        with pytest.raises(ConfigError, match=told):
            self.build(hosts="a", **values)

    def test_a_secret_is_in_no_error(self):
        with pytest.raises(ConfigError) as caught:
            self.build(hosts="a", token=12345, low="5", high="4")
        assert "12345" not in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            self.build(hosts="a", token="hunter2", low="5", high="4")
        assert "hunter2" not in repr(caught.value)
        assert caught.value.__cause__ is None


def toml(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return read_file(folder)


def values(settings, section="default"):
    return {key: raw.value for key, raw in settings.sections[section].items()}


@pytest.mark.parametrize(
    "text, default, k8s",
    [
        (
            "[default]\nimage = a:1\n\n[k8s]\nnamespace: rl\n",
            {"image": "a:1"},
            {"namespace": "rl"},
        ),
        (
            "backend=blue\nimage = a=b\n[default]\ncpu=2\n",
            {"backend": "blue", "image": "a=b", "cpu": "2"},
            None,
        ),
        (
            "env =\n    HOME_OF_DATA\n    OTHER\ncpu = 1\n",
            {"env": "HOME_OF_DATA\nOTHER", "cpu": "1"},
            None,
        ),
        ("  cpu = 1\n  memory = 2\n", {"cpu": "1", "memory": "2"}, None),
        (
            'image = "a:1"\nbackend = \'blue\'\nlog_file = "odd\n',
            {"image": "a:1", "backend": "blue", "log_file": '"odd'},
            None,
        ),
        ("Backend = Blue\n[K8S]\nNameSpace = x\n", {"backend": "Blue"}, {"namespace": "x"}),
        ("\ufeffcpu = 1\r\nmemory = 2\r\n", {"cpu": "1", "memory": "2"}, None),
    ],
    ids=[
        "sections",
        "lines before any section",
        "indented lines continue a list",
        "indented keys",
        "matching quotes are taken off",
        "any case",
        "of an editor that marks its encoding",
    ],
)
def test_keys_of_ini_are_read(tmp_path, text, default, k8s):
    (tmp_path / ".fiberconfig").write_text(text)
    found = read_file(tmp_path)

    assert values(found) == default
    assert (values(found, "k8s") if k8s else None) == k8s


class TestTrust:
    """A file names programs that run as this user: it is read only where nobody else wrote it.

    Cases are owner, group and mode of the folder and of the file, and the user who reads.
    """

    @pytest.fixture
    def made(self, tmp_path, monkeypatch):
        require.need("root", None if os.geteuid() == 0 else "only root can be another user")
        monkeypatch.setenv("SUDO_UID", "1234")

        def make(name, folder, file, user):
            (tmp_path / name).write_text("[tool.fiber]\ncpu=2\n" if "py" in name else "cpu = 2")
            for path, (owner, group, mode) in ((tmp_path / name, file), (tmp_path, folder)):
                os.chown(path, owner, group)
                path.chmod(mode)
            monkeypatch.setattr(os, "getuid", lambda: user)
            return tmp_path

        yield make
        os.chown(tmp_path, 0, 0)

    @pytest.mark.parametrize("name", [".fiberconfig", "pyproject.toml"])
    @pytest.mark.parametrize(
        "folder, file, user, told",
        [
            ((0, 0, 0o755), (65534, 0, 0o644), 0, "{file} belongs to user nobody"),
            ((65534, 0, 0o755), (0, 0, 0o644), 0, "{folder} belongs to user nobody"),
            ((0, 0, 0o755), (1234, 0, 0o644), 4321, "{file} belongs to user 1234"),
            ((0, 0, 0o755), (0, 0, 0o646), 0, "every user may write to {file}"),
            ((0, 0, 0o777), (0, 0, 0o644), 0, "every user may write to {folder}"),
            ((0, 0, 0o755), (0, 100, 0o664), 0, "group users may write to {file}"),
            ((0, 4321, 0o775), (0, 0, 0o644), 0, "group 4321 may write to {folder}"),
            # root's, as in an image; of who called sudo
            ((0, 0, 0o755), (0, 0, 0o644), 4321, None),
            ((1234, 1234, 0o755), (1234, 1234, 0o644), 0, None),
            # a umask of 002 and a group of one's own; in a container no other name is known
            ((0, 0, 0o775), (0, 0, 0o664), 0, None),
            ((4321, 4321, 0o2775), (4321, 4321, 0o664), 4321, None),
            # anybody's folder where nobody takes another's place
            ((0, 0, 0o1777), (4321, 4321, 0o600), 4321, None),
        ],
    )
    def test_what_others_wrote_or_may_write_is_refused(self, made, name, folder, file, user, told):
        here = made(name, folder, file, user)
        told = told and f"{told}.*FIBER_TRUSTED_FOLDERS={{folder}}".format(
            folder=here, file=here / name
        )
        with pytest.raises(ConfigError, match=told) if told else contextlib.nullcontext():
            assert load_config({}, {}, here).cpu == 2
        # who knows them may say so, in another place than the file
        environ = {"FIBER_TRUSTED_FOLDERS": f"/nowhere,{here.parent}"}
        assert load_config({}, environ, here).cpu == 2
        assert load_config({"trusted_folders": [here]}, {}, here).cpu == 2

    def test_a_link_of_others_to_a_file_of_ones_own_is_refused(self, made):
        here = made("mine", (0, 0, 0o1777), (0, 0, 0o644), 0)
        (here / ".fiberconfig").symlink_to("mine")
        os.chown(here / ".fiberconfig", 65534, 0, follow_symlinks=False)
        with pytest.raises(ConfigError, match="belongs to user nobody"):
            load_config({}, {}, here)

    def test_a_file_cannot_vouch_for_itself(self, tmp_path):
        with pytest.raises(ConfigError, match=r"trusted_folders.*:1.*FIBER_TRUSTED_FOLDERS"):
            load(tmp_path, file="trusted_folders = /")


class TestToml:
    def test_the_table_of_the_project_file_is_read_with_its_lines(self, tmp_path):
        ours = '[tool.fiber]\ncpu = 2\nenv = ["A", "B"]\n[tool.fiber.k8s]\ncpu = "rl"\n'
        found = toml(tmp_path, f"[tool.other]\ncpu = 1\n{ours}")

        assert values(found) == {"cpu": 2, "env": ["A", "B"]}
        assert values(found, "k8s") == {"cpu": "rl"}
        path = tmp_path / "pyproject.toml"
        assert str(found.sections["default"]["cpu"].origin) == f"{path}:4"
        assert str(found.sections["k8s"]["cpu"].origin) == f"{path}:7"
        assert str(found.origins["default"]) == f"{path}:3"

    def test_a_value_whose_line_is_not_found_knows_its_file(self, tmp_path):
        found = toml(tmp_path, "tool.fiber.cpu = 2\n")

        assert str(found.sections["default"]["cpu"].origin) == str(tmp_path / "pyproject.toml")

    @pytest.mark.parametrize(
        "text", ['[project]\ndependencies = ["fiber-core"]\n', "this is no TOML ["]
    )
    def test_a_project_file_that_is_none_of_ours_sets_nothing(self, tmp_path, text):
        assert toml(tmp_path, text).path is None

    def test_the_own_file_wins_which_is_logged(self, tmp_path, caplog):
        (tmp_path / ".fiberconfig").write_text("cpu = 1\n")
        with caplog.at_level(logging.DEBUG, "fiber.config"):
            found = toml(tmp_path, "[tool.fiber]\ncpu = 2\nmemory = 3\n")

        assert values(found) == {"cpu": "1"}
        assert "[tool.fiber]" in caplog.text
        assert "is not" in caplog.text


def test_in_a_folder_that_this_user_may_not_enter_there_is_no_file(tmp_path, monkeypatch):
    require.need("root", None if os.geteuid() == 0 else "only root can be another user")
    (tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "closed")
    os.seteuid(65534)
    try:
        found = find_file({}, {})
    finally:
        os.seteuid(0)
    assert found == FileSettings()


@pytest.mark.parametrize(
    "name, data, told",
    [
        (".fiberconfig", b"cpu=1\n[k8s]\n[default]\ncpu=2\n", "'cpu' is set twice: .*:1 and .*:4"),
        (".fiberconfig", b"cpu = 1\nnonsense\n", r"\.fiberconfig:2: expected 'key = value'"),
        (".fiberconfig", b"\xff\xfe\x00", r"\.fiberconfig cannot be read"),
        ("pyproject.toml", b"[tool.fiber\n", r"pyproject\.toml is no valid TOML"),
        ("pyproject.toml", b"[tool]\nfiber = 3\n", "must be a table, got 3"),
    ],
    ids=["twice", "nonsense", "no text", "no TOML", "no table"],
)
def test_a_mistake_is_an_error_with_its_place(tmp_path, name, data, told):
    (tmp_path / name).write_bytes(data)

    with pytest.raises(ConfigError, match=told):
        read_file(tmp_path)
