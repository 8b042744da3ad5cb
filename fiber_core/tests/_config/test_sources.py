"""The configuration file is read with the line of each value; nothing is judged yet."""

import logging

import pytest

from fiber._config.sources import read_file
from fiber.exceptions import ConfigError


def ini(folder, text):
    (folder / ".fiberconfig").write_text(text)
    return read_file(folder)


def toml(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return read_file(folder)


def values(settings, section="default"):
    return {key: raw.value for key, raw in settings.sections[section].items()}


class TestIni:
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
        ],
        ids=[
            "sections",
            "lines before any section",
            "indented lines continue a list",
            "indented keys",
            "matching quotes are taken off",
            "any case",
        ],
    )
    def test_keys_are_read(self, tmp_path, text, default, k8s):
        found = ini(tmp_path, text)

        assert values(found) == default
        assert (values(found, "k8s") if k8s else None) == k8s

    def test_each_value_knows_its_line(self, tmp_path):
        found = ini(tmp_path, "# a comment\n\nbackend = blue\n; another\n[k8s]\nnamespace = rl\n")

        path = tmp_path / ".fiberconfig"
        assert str(found.sections["default"]["backend"].origin) == f"{path}:3"
        assert str(found.sections["k8s"]["namespace"].origin) == f"{path}:6"
        assert str(found.origins["k8s"]) == f"{path}:5"

    def test_a_file_from_an_editor_that_marks_its_encoding_is_read(self, tmp_path):
        (tmp_path / ".fiberconfig").write_bytes(b"\xef\xbb\xbfcpu = 1\r\nmemory = 2\r\n")

        assert values(read_file(tmp_path)) == {"cpu": "1", "memory": "2"}

    @pytest.mark.parametrize(
        "data, told",
        [
            (
                b"cpu = 1\n[k8s]\n[default]\ncpu = 2\n",
                r"'cpu' is set twice: .*:1 and .*:4; remove one",
            ),
            (b"cpu = 1\nnonsense\n", r"\.fiberconfig:2: expected 'key = value'"),
            (b"\xff\xfe\x00", r"\.fiberconfig cannot be read"),
        ],
        ids=["twice", "nonsense", "no text"],
    )
    def test_a_mistake_is_an_error_with_its_place(self, tmp_path, data, told):
        (tmp_path / ".fiberconfig").write_bytes(data)

        with pytest.raises(ConfigError, match=told):
            read_file(tmp_path)


class TestToml:
    def test_the_table_of_the_project_file_is_read(self, tmp_path):
        text = '[tool.fiber]\ncpu = 2\nenv = ["A", "B"]\n[tool.fiber.k8s]\nnamespace = "rl"\n'
        found = toml(tmp_path, text)

        assert values(found) == {"cpu": 2, "env": ["A", "B"]}
        assert values(found, "k8s") == {"namespace": "rl"}

    def test_each_value_knows_its_line(self, tmp_path):
        text = '[tool.other]\ncpu = 1\n[tool.fiber]\ncpu = 2\n[tool.fiber.k8s]\ncpu = "rl"\n'
        found = toml(tmp_path, text)

        path = tmp_path / "pyproject.toml"
        assert str(found.sections["default"]["cpu"].origin) == f"{path}:4"
        assert str(found.sections["k8s"]["cpu"].origin) == f"{path}:6"
        assert str(found.origins["default"]) == f"{path}:3"

    def test_a_value_whose_line_is_not_found_knows_its_file(self, tmp_path):
        found = toml(tmp_path, "tool.fiber.cpu = 2\n")

        assert str(found.sections["default"]["cpu"].origin) == str(tmp_path / "pyproject.toml")

    @pytest.mark.parametrize(
        "text", ['[project]\ndependencies = ["fiber-core"]\n', "this is no TOML ["]
    )
    def test_a_project_file_that_is_none_of_ours_sets_nothing(self, tmp_path, text):
        assert toml(tmp_path, text).path is None

    @pytest.mark.parametrize(
        "text, told",
        [
            ("[tool.fiber\n", r"pyproject\.toml is no valid TOML"),
            ("[tool]\nfiber = 3\n", "must be a table, got 3"),
        ],
    )
    def test_a_mistake_is_an_error(self, tmp_path, text, told):
        with pytest.raises(ConfigError, match=told):
            toml(tmp_path, text)

    def test_the_own_file_wins_which_is_logged(self, tmp_path, caplog):
        (tmp_path / ".fiberconfig").write_text("cpu = 1\n")
        with caplog.at_level(logging.DEBUG, "fiber.config"):
            found = toml(tmp_path, "[tool.fiber]\ncpu = 2\nmemory = 3\n")

        assert values(found) == {"cpu": "1"}
        assert "[tool.fiber]" in caplog.text
        assert "is not" in caplog.text
