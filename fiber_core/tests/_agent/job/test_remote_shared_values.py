"""How often a value that the master shares crosses to another host."""

import numpy as np
import pytest

import fiber
from fiber._objects.blocks.block import MAX_BYTES, Block
from wire_world import until

pytestmark = pytest.mark.usefixtures("remote_host")

SIZE = 2**19


def read(handle, index):
    return float(handle.value[index])


@pytest.fixture
def fetched(monkeypatch):
    """Requests for pieces of shared values."""
    asked = []
    give = Block._send_piece

    def noted(self, peer, message):
        asked.append(peer.ident)
        give(self, peer, message)

    monkeypatch.setattr(Block, "_send_piece", noted)
    return asked


def test_it_crosses_once_to_a_host_however_many_workers_and_tasks_read_it(fetched):
    noise = fiber.shared(np.arange(SIZE, dtype=float))
    with fiber.Pool(2) as pool:
        items = [(noise, index) for index in range(40)]
        assert pool.starmap(read, items, chunksize=1) == list(range(40))
        pieces = -(-noise.nbytes // MAX_BYTES)
        assert len(fetched) == pieces
        assert len(set(fetched)) == 1
        block = noise._object
        # those that read it have it until the last handle, which is here, goes
        assert block._copies.holders()
        del noise, items
        until(lambda: block._sealed is None)
