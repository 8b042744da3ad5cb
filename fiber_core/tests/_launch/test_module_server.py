"""Installed packages are told from a program's own modules by the folders of ``sysconfig``."""

import sysconfig

import pytest

from fiber._launch.module_server import installation_folders


@pytest.fixture
def asked_anew():
    installation_folders.cache_clear()
    yield
    installation_folders.cache_clear()


def test_folders_of_the_installation_are_those_of_sysconfig(asked_anew):
    assert installation_folders() == set(sysconfig.get_paths().values())


def test_a_scheme_with_other_variables_is_left_to_sysconfig(asked_anew, monkeypatch):
    def get_paths(expand=True):
        return {"data": "/opt/python" if expand else "{somewhere}"}

    monkeypatch.setattr(sysconfig, "get_paths", get_paths)

    assert installation_folders() == {"/opt/python"}
