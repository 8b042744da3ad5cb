"""A process that says what makes no sense is cut off, whatever object it talks to."""

import pytest

from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.blocks import block
from fiber._objects.blocks.block import Block
from fiber._objects.memory import heap
from fiber._objects.memory.heap import MAX_BYTES, READ, WRITE, Memory
from fiber._objects.protocol import Op
from fiber._objects.queue import messages
from fiber._objects.queue.messages import ItemWithReferences
from fiber._objects.queue.tasks import TaskChannel
from fiber._objects.sync import protocol as sync
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber.exceptions import TransportError
from wire_world import until

SIZE = 2 * MAX_BYTES
MAKE = {
    "queue": lambda node: node.queue(),
    "tasks": lambda node: node.make(TaskChannel),
    "rlock": lambda node: node.make(OwnedSemaphore, Kind.RLOCK, SemaphoreState(1, 1)),
    "memory": lambda node: node.make(Memory, SIZE),
    "block": lambda node: node.make(Block, bytes(SIZE)),
}
PUT = protocol.PUT.pack(Op.PUT, 0)
NONSENSE = {
    "queue: nothing": b"",
    "queue: an unknown operation": b"\xff\x00",
    "queue: an attach cut short": protocol.ATTACH.pack(Op.ATTACH, 0, 0, 0, b"")[:-1],
    "queue: a direction that does not exist": protocol.SIZE.pack(Op.SIZE, 9),
    "queue: a mode that is none": protocol.REQUEST.pack(Op.REQUEST, 0, 9, 1, 0, 0),
    "queue: a wish for nothing": protocol.REQUEST.pack(Op.REQUEST, 0, 0, 0, 0, 0),
    "queue: more settled than given": protocol.SETTLE.pack(Op.SETTLE, 0, 5),
    "queue: more given back than given": protocol.GIVE_BACK.pack(Op.GIVE_BACK, 0, 0, 5, 0),
    "queue: a batch cut short": PUT + b"".join(messages.pack([b"abc"]))[:-1],
    "queue: references that are none": PUT
    + b"".join(messages.pack([ItemWithReferences(b"\x02\0\0\0{]")])),
    "tasks: a direction that does not exist": protocol.TASKS_DONE.pack(Op.TASKS_DONE, 1, 0, 0),
    "tasks: more settled than given": protocol.TASKS_DONE.pack(Op.TASKS_DONE, 0, 5, 0),
    "tasks: more done than given": protocol.TASKS_DONE.pack(Op.TASKS_DONE, 0, 0, 2**63),
    "tasks: no number": bytes([Op.TASKS_DONE]),
    "tasks: no number of a join": bytes([Op.PUTS_CONFIRMED]),
    "rlock: another's release": sync.REQUEST.pack(sync.Op.RELEASE_FOR_OTHER, 1, 0),
    "rlock: an unknown operation": sync.REQUEST.pack(200, 1, 0),
    "rlock: no number": bytes([sync.Op.VALUE]),
    "memory: reading over the end": READ.pack(heap.Op.READ, SIZE - 63, 64),
    "memory: reading behind the end": READ.pack(heap.Op.READ, SIZE, 1),
    "memory: reading at a number that overflows": READ.pack(heap.Op.READ, 2**64 - 1, 2),
    "memory: more than a message": READ.pack(heap.Op.READ, 0, MAX_BYTES + 1),
    "memory: half a number": READ.pack(heap.Op.READ, 0, 64)[:-1],
    "memory: writing over the end": WRITE.pack(heap.Op.WRITE, SIZE - 4) + b"12345",
    "memory: writing at a number that overflows": WRITE.pack(heap.Op.WRITE, 2**64 - 1) + b"1",
    "memory: an unknown operation": bytes([111]),
    "block: more than a message": block.FETCH.pack(block.Op.FETCH, 0, block.MAX_BYTES + 1),
    "block: behind the end": block.FETCH.pack(block.Op.FETCH, SIZE * 2, 1),
    "block: at a number that overflows": block.FETCH.pack(block.Op.FETCH, 2**64 - 1, 2),
    "block: half a number": block.FETCH.pack(block.Op.FETCH, 0, 1)[:-1],
    "block: no place": bytes([block.Op.HAS]),
    "block: half a place": bytes([block.Op.HAS]) + bytes(31),
    "block: a place that is no text": bytes([block.Op.HAS]) + bytes(32) + b"\xff",
    "block: not where": bytes([block.Op.LOCATE]),
    "block: an unknown operation": bytes([151]),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_peer_that_talks_nonsense_is_cut_off_and_the_others_are_served(owner, other, third, case):
    made = MAKE[case.partition(":")[0]](owner)
    bad, good = other.remote(made), third.remote(made)
    with pytest.raises(TransportError):
        pending = bad.call([NONSENSE[case]])
        assert pending.wait(20)
        pending.result()

    until(lambda: bad.is_lost)
    good.sync()
    assert not good.is_lost
