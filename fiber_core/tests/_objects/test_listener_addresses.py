"""Addresses as users write them, as URLs, and where others reach us."""

from types import SimpleNamespace

import pytest

from fiber._objects import listener_addresses


def node(folder, *urls, same_host=True):
    capabilities = SimpleNamespace(same_host=same_host)
    return SimpleNamespace(
        info=SimpleNamespace(capabilities=capabilities),
        directory=folder,
        urls=lambda: [*urls, "tls+tcp://10.1.2.3:4"],
    )


def test_where_all_processes_are_on_one_host_a_path_is_enough(tmp_path):
    family, address = listener_addresses.any_address(None, node(tmp_path))
    assert family == listener_addresses.family_of(address) == "AF_UNIX"
    assert address.startswith(f"{tmp_path}/")
    assert listener_addresses.any_address("AF_INET", node(tmp_path)) == (
        "AF_INET",
        ("localhost", 0),
    )


@pytest.mark.parametrize("streams", [[], ["tunnel+tls+tcp://0badcafe@127.0.0.1:1"]])
def test_where_they_are_not_it_is_the_host_that_others_dial(tmp_path, streams):
    far = node(tmp_path, *streams, same_host=False)
    assert listener_addresses.any_address(None, far) == ("AF_INET", ("10.1.2.3", 0))


def test_a_host_is_resolved_and_none_is_all():
    with pytest.raises(OSError):
        listener_addresses.dial_url(("no host has this name.invalid", 5), "AF_INET")
    assert listener_addresses.listen_url(("localhost", 5), "AF_INET") == "tls+tcp://127.0.0.1:5"
    assert listener_addresses.listen_url(("", 5), "AF_INET") == "tls+tcp://0.0.0.0:5"
    assert listener_addresses.dial_url(("localhost", 5), "AF_INET") == "tls+tcp://127.0.0.1:5"
    assert listener_addresses.address_of("tls+tcp://127.0.0.1:5", "AF_INET") == ("127.0.0.1", 5)


def test_what_is_listened_on_everywhere_is_reachable_by_each_network_others_first():
    found = listener_addresses.reachable("tls+tcp://0.0.0.0:5")
    assert "tls+tcp://127.0.0.1:5" in found
    assert not any("0.0.0.0" in url for url in found)
    assert found == sorted(found, key=lambda url: "//127." in url)
    assert listener_addresses.reachable("tls+tcp://10.1.2.3:5") == ["tls+tcp://10.1.2.3:5"]


def test_we_listen_where_our_neighbours_reach_us(tmp_path):
    neighbours = [
        "tls+tcp://127.0.0.1:5",
        "tls+tcp://127.0.0.1:6",
        f"{listener_addresses._UNIX}/some/path",
    ]
    inet, unix = listener_addresses.listen_urls_near(neighbours, node(tmp_path))
    assert inet == "tls+tcp://127.0.0.1:0"
    assert str(tmp_path) in unix


def test_probing_leaves_nothing_behind(tmp_path):
    path = tmp_path / "here"
    listener_addresses.probe(str(path), "AF_UNIX")
    assert not path.exists()
    path.touch()
    with pytest.raises(OSError, match="in use"):
        listener_addresses.probe(str(path), "AF_UNIX")
    assert path.exists()
