"""The configuration file is read with the line of each value; nothing is judged yet."""

import logging

import pytest

from fiber._config.sources import Origin, OriginKind, read_file
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
    def test_without_a_file_nothing_is_set(self, tmp_path):
        assert read_file(tmp_path).sections == {}

    def test_sections_and_keys(self, tmp_path):
        found = ini(tmp_path, "[default]\nimage = a:1\n\n[k8s]\nnamespace: rl\n")

        assert values(found) == {"image": "a:1"}
        assert values(found, "k8s") == {"namespace": "rl"}

    def test_lines_before_any_section_are_the_default_sections(self, tmp_path):
        found = ini(tmp_path, "backend=blue\nimage = a=b\n[default]\ncpu=2\n")

        assert values(found) == {"backend": "blue", "image": "a=b", "cpu": "2"}

    def test_each_value_knows_its_line(self, tmp_path):
        found = ini(tmp_path, "# a comment\n\nbackend = blue\n; another\n[k8s]\nnamespace = rl\n")

        path = tmp_path / ".fiberconfig"
        assert str(found.sections["default"]["backend"].origin) == f"{path}:3"
        assert str(found.sections["k8s"]["namespace"].origin) == f"{path}:6"
        assert str(found.origins["k8s"]) == f"{path}:5"

    def test_indented_lines_continue_a_list(self, tmp_path):
        found = ini(tmp_path, "env =\n    HOME_OF_DATA\n    OTHER\ncpu = 1\n")

        assert values(found) == {"env": "HOME_OF_DATA\nOTHER", "cpu": "1"}

    def test_indented_keys_are_keys(self, tmp_path):
        assert values(ini(tmp_path, "  cpu = 1\n  memory = 2\n")) == {"cpu": "1", "memory": "2"}

    def test_matching_quotes_are_taken_off(self, tmp_path):
        found = ini(tmp_path, 'image = "a:1"\nbackend = \'blue\'\nlog_file = "odd\n')

        assert values(found) == {"image": "a:1", "backend": "blue", "log_file": '"odd'}

    def test_keys_and_sections_are_read_in_any_case(self, tmp_path):
        found = ini(tmp_path, "Backend = Blue\n[K8S]\nNameSpace = x\n")

        assert values(found) == {"backend": "Blue"}
        assert values(found, "k8s") == {"namespace": "x"}

    def test_a_file_from_an_editor_that_marks_its_encoding_is_read(self, tmp_path):
        (tmp_path / ".fiberconfig").write_bytes(b"\xef\xbb\xbfcpu = 1\r\nmemory = 2\r\n")

        assert values(read_file(tmp_path)) == {"cpu": "1", "memory": "2"}

    def test_a_key_set_twice_is_an_error_with_both_lines(self, tmp_path):
        with pytest.raises(ConfigError, match=r"'cpu' is set twice: .*:1 and .*:4; remove one"):
            ini(tmp_path, "cpu = 1\n[k8s]\n[default]\ncpu = 2\n")

    def test_a_line_that_is_neither_is_an_error_with_its_number(self, tmp_path):
        with pytest.raises(ConfigError, match=r"\.fiberconfig:2: expected 'key = value'"):
            ini(tmp_path, "cpu = 1\nnonsense\n")

    def test_a_file_that_is_no_text_is_an_error_that_names_it(self, tmp_path):
        (tmp_path / ".fiberconfig").write_bytes(b"\xff\xfe\x00")

        with pytest.raises(ConfigError, match=r"\.fiberconfig cannot be read"):
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

    def test_a_project_file_without_the_table_sets_nothing(self, tmp_path):
        assert toml(tmp_path, '[project]\ndependencies = ["fiber-core"]\n').path is None

    def test_a_project_file_that_is_none_of_ours_is_not_even_parsed(self, tmp_path):
        assert toml(tmp_path, "this is no TOML [").path is None

    def test_invalid_toml_is_an_error_that_names_the_file(self, tmp_path):
        with pytest.raises(ConfigError, match=r"pyproject\.toml is no valid TOML"):
            toml(tmp_path, "[tool.fiber\n")

    def test_what_is_no_table_is_an_error(self, tmp_path):
        with pytest.raises(ConfigError, match="must be a table, got 3"):
            toml(tmp_path, "[tool]\nfiber = 3\n")

    def test_the_own_file_wins_which_is_logged(self, tmp_path, caplog):
        (tmp_path / ".fiberconfig").write_text("cpu = 1\n")
        with caplog.at_level(logging.DEBUG, "fiber.config"):
            found = toml(tmp_path, "[tool.fiber]\ncpu = 2\nmemory = 3\n")

        assert values(found) == {"cpu": "1"}
        assert "[tool.fiber]" in caplog.text
        assert "is not" in caplog.text


@pytest.mark.parametrize(
    "kind, where, text",
    [
        (OriginKind.DEFAULT, "", "default"),
        (OriginKind.ENVIRONMENT, "FIBER_CPU", "environment FIBER_CPU"),
        (OriginKind.ARGUMENT, "cpu", "argument cpu to fiber.init"),
        (OriginKind.FILE, "/x/.fiberconfig:3", "/x/.fiberconfig:3"),
    ],
)
def test_an_origin_as_text_names_the_place(kind, where, text):
    assert str(Origin(kind, where)) == text
