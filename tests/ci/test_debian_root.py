"""The folders in which stages of the pipeline run as if they were the root."""

import os

import pytest

import ci_scripts
from require import need


@pytest.fixture
def debian(tmp_path):
    """One that has this machine's programs."""
    need("root", "only root may mount" if os.geteuid() else None)
    with ci_scripts.modules() as load:
        made = load("debian_root").DebianRoot("none", (), tmp_path)
    for name in ("mnt", "usr"):
        (made.path / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (made.path / name).symlink_to(f"usr/{name}")
    return made


@pytest.mark.parametrize("enters_anew", [False, True], ids=["a command", "an engine's exec"])
def test_what_runs_in_it_sees_its_files_alone(debian, tmp_path, capfd, enters_anew):
    (debian.path / "inside").touch()
    entering = ("nsenter", "--mount=/proc/self/ns/mnt") if enters_anew else ()
    script = f"ls /; ls /mnt; test ! -e {tmp_path}"

    assert debian.call(*entering, "sh", "-c", script, shows=["/usr"]) == 0

    assert "inside" in capfd.readouterr().out
