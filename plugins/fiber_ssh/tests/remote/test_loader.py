"""Hosts of one name that share a home have folders of their own: an agent ends what another began."""

import pytest

from fiber_ssh.agent_archive import loader_source


@pytest.fixture
def own(tmp_path):
    """The folder that a machine gets, by its id."""
    found = {}
    source = loader_source()
    assert source.endswith("\n\n_main()\n")
    exec(source.removesuffix("_main()\n"), found)
    text = found["_text"]

    def own(machine):
        found["_text"] = lambda path: machine if path == "/etc/machine-id" else text(path)
        return found["_own"](str(tmp_path / "worker"))

    return own


def test_each_machine_keeps_its_folder(own, tmp_path):
    first, second = "a" * 32, "b" * 32

    for _ in range(2):
        assert own(first) == str(tmp_path / "worker")
        assert own(second) == str(tmp_path / "worker-bbbbbbbb")

    assert sorted(path.name for path in (tmp_path / "worker").iterdir()) == ["machine"]


def test_a_machine_without_an_id_is_told_by_its_boot(own, tmp_path):
    assert own("a" * 32) == str(tmp_path / "worker")
    assert own("").startswith(str(tmp_path / "worker-"))


def test_where_both_are_anothers_nothing_is_kept(own):
    own("a" * 32)
    own("b" * 32)

    with pytest.raises(OSError, match="belongs to other hosts of this name"):
        own("b" * 8 + "c" * 24)
