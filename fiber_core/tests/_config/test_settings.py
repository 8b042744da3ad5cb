"""Settings: argument over environment over file, typed, validated, each with its origin."""

import pickle
from pathlib import Path

import attrs
import pytest

from fiber._config.settings import Config, load_config
from fiber._config.sources import OriginKind
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
    def test_nothing_set_is_the_defaults(self, tmp_path):
        config = load(tmp_path)

        assert config == Config()
        assert config.backend is None
        assert config.max_frame == 4 * 1024 * 1024
        assert config.origin("cpu").kind is OriginKind.DEFAULT

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

    def test_environment_and_directory_are_this_processs_unless_given(self, tmp_path, monkeypatch):
        (tmp_path / ".fiberconfig").write_text("cpu = 1\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FIBER_MEMORY", "5")

        config = load_config({})

        assert (config.cpu, config.memory) == (1.0, 5)

    def test_none_in_the_environment_takes_back_what_the_file_set(self, tmp_path):
        config = load(tmp_path, environ={"FIBER_CPU": "none", "FIBER_MEMORY": "none"}, file="cpu=2")

        assert (config.cpu, config.memory) == (None, None)


class TestCoreKeys:
    def test_every_key_has_its_type(self, tmp_path):
        file = """
            backend = blue
            image = registry.example.com:5000/team/image@sha256:0123
            log_level = DEBUG
            log_file = /var/log/fiber.log
            debug = on
            cpu = 500m
            memory = 4Gi
            env = A, B
            log_prefix = yes
            start_timeout = 90
            lease = 12.5
            max_frame = 65536
            max_attempts = 5
        """

        assert load(tmp_path, file=file) == Config(
            backend="blue",
            image="registry.example.com:5000/team/image@sha256:0123",
            log_level="debug",
            log_file=Path("/var/log/fiber.log"),
            debug=True,
            cpu=0.5,
            memory=4096,
            env=("A", "B"),
            log_prefix=True,
            start_timeout=90.0,
            lease=12.5,
            max_frame=65536,
            max_attempts=5,
        )

    @pytest.mark.parametrize(
        "key, value",
        [
            ("log_level", "loud"),
            ("debug", "maybe"),
            ("cpu", "0"),
            ("cpu", "many"),
            ("memory", "4Xi"),
            ("memory", "0"),
            ("start_timeout", "0"),
            ("lease", "-1"),
            ("max_frame", "100"),
            ("max_frame", str(2**31)),
            ("max_attempts", "0"),
            ("max_attempts", "1.5"),
        ],
    )
    def test_a_bad_value_names_the_key_and_where_it_was_set(self, tmp_path, key, value):
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
    def test_explain_lists_every_setting_with_value_origin_and_help(self, tmp_path):
        config = load(tmp_path, environ={"FIBER_CPU": "2"}, backend_info=K8S)

        lines = {setting.key: setting for setting in config.explain()}

        assert lines["cpu"].value == 2.0
        assert str(lines["cpu"].origin) == "environment FIBER_CPU"
        assert str(lines["image"].origin) == "default"
        assert lines["k8s_namespace"].help == "where pods live"
        assert "settings" not in lines
        assert all(setting.help for key, setting in lines.items() if not key.startswith("k8s_"))

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

    def test_it_can_be_sent_to_another_process(self, tmp_path):
        config = load(tmp_path, {"cpu": 1}, backend_info=K8S)

        copy = pickle.loads(pickle.dumps(config))

        assert copy == config
        assert copy.origin("cpu") == config.origin("cpu")
