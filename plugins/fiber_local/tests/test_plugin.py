"""The plugin: where processes of a run listen, and run directories with detached jobs."""

import json
import secrets
import sys

import pytest

from fiber._agent import rundir
from fiber.model import Peers
from fiber_local.config import LocalConfig
from fiber_local.plugin import CAPABILITIES, fiber_backends, fiber_listen_address
from fiber_local.supervisors import mark_detached

HERE = "unix" if sys.platform == "linux" else "ipc"


def peers(**changes):
    return Peers(same_host=True, directory="/run/fiber/0badcafe", name="m0", **changes)


@pytest.mark.parametrize(
    "config, url",
    [
        (None, f"{HERE}:///run/fiber/0badcafe/m0.sock"),
        (LocalConfig(), f"{HERE}:///run/fiber/0badcafe/m0.sock"),
        (LocalConfig(transport="ipc"), "ipc:///run/fiber/0badcafe/m0.sock"),
        (LocalConfig(transport="tls"), "tls+tcp://127.0.0.1:0"),
    ],
)
def test_peers_meet_at_a_socket_in_the_run_directory_unless_the_setting_differs(config, url):
    address = fiber_listen_address("local", peers(config=config))

    assert (address.bind_url, address.advertise_host) == (url, None)


def test_other_backends_answer_for_themselves():
    assert fiber_listen_address("docker", peers()) is None


def test_the_backend_is_announced():
    (info,) = fiber_backends()

    assert (info.name, info.config, info.capabilities) == ("local", LocalConfig, CAPABILITIES)


@pytest.mark.parametrize("value", [-1.0, -0.001])
def test_a_negative_timeout_is_refused(value):
    with pytest.raises(ValueError, match="idle_exit"):
        LocalConfig(idle_exit=value)


def test_a_directory_is_marked_and_its_description_stays():
    folder = rundir.create(secrets.token_hex(4), "local")
    before = rundir.describe(folder)

    mark_detached(folder)
    mark_detached(folder)

    assert rundir.describe(folder) == {**before, "detached": True}
    assert sorted(path.name for path in folder.iterdir()) == ["owner", "run.json"]
    rundir.remove(folder)


def test_a_directory_without_description_is_left_alone(tmp_path):
    mark_detached(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_one_that_is_detached_already_is_not_written(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"detached": True}))
    before = (tmp_path / "run.json").stat().st_mtime_ns

    mark_detached(tmp_path)

    assert (tmp_path / "run.json").stat().st_mtime_ns == before
