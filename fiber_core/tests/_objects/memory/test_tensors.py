"""Torch's tensors in shared memory: one memory on a host, refused elsewhere, copies of all others."""

import copy
import gc
import io
import os
import pickle
import signal
from pathlib import Path

import pytest

import fiber
import require
from children import PATIENCE, be_elsewhere, finish, start
from fiber._agent.supervisor import preload
from fiber.exceptions import PeerLostError
from wire_world import until

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def torch(shared_runtime):
    """The library, which processes of this module have when they start."""
    require.need_module("torch")
    import torch

    before = list(preload._requested)
    fiber.set_forkserver_preload(["torch"])
    yield torch
    preload._requested[:] = before


@pytest.fixture
def through_a_queue():
    """Put something into a queue and get it."""
    with fiber.SimpleQueue() as queue:
        yield lambda value: (queue.put(value), queue.get())[1]


def in_shared_memory(torch, *values):
    return torch.tensor([float(value) for value in values]).share_memory_()


def open_files():
    """Descriptors of memory that torch shares."""
    gc.collect()
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except OSError:
            continue
    return sum("/torch_" in one for one in found)


def increase(tensor):
    tensor += 1
    return tensor


def increase_all(inbox, connection, outbox):
    increase(inbox.get())
    outbox.put(increase(connection.recv()))


def make(*values):
    import torch

    return torch.tensor(values).share_memory_()


def make_and_wait(outbox):
    outbox.put(make(1.0))
    signal.pause()


def get_elsewhere(inbox, outbox):
    be_elsewhere()
    try:
        inbox.get()
    except pickle.UnpicklingError as error:
        outbox.put(str(error))


def test_queues_and_pipes_lead_to_the_same_memory(torch):
    first, second = in_shared_memory(torch, 1, 2, 3), in_shared_memory(torch, 10, 20)
    inbox, outbox, (ours, theirs) = fiber.SimpleQueue(), fiber.SimpleQueue(), fiber.Pipe()
    inbox.put(first[1:])
    ours.send(second)
    child = start(increase_all, inbox, theirs, outbox)
    assert outbox.get().untyped_storage() is second.untyped_storage()
    finish(child)
    assert (first.tolist(), second.tolist()) == ([1, 3, 4], [11, 21])


def test_arguments_and_results_of_tasks_are_the_same_memory(torch):
    tensor = in_shared_memory(torch, 0, 0)
    with fiber.Pool(1) as pool:
        found = pool.map(increase, [tensor] * 3, chunksize=1)
        assert pool.apply(lambda: increase(tensor).tolist()) == [4, 4]
    assert tensor.tolist() == [4, 4]
    assert {one.data_ptr() for one in found} == {tensor.data_ptr()}


def test_a_worker_lets_go_of_what_it_returned(torch):
    with fiber.Pool(1) as pool:
        found = [pool.apply(make, (float(number),)) for number in range(3)]
        assert [one.item() for one in found] == [0, 1, 2]
        assert all(one.is_shared() for one in found)
        until(lambda: pool.apply(open_files) == 0, timeout=PATIENCE)
        assert [one.item() for one in found] == [0, 1, 2]


def test_tensors_that_share_memory_share_it_in_the_other_process(torch, through_a_queue):
    whole = in_shared_memory(torch, *range(6))
    rows, storage, again = through_a_queue((whole.view(2, 3), whole.untyped_storage(), whole[::2]))
    rows[0, 0] = 7
    assert (whole[0].item(), again[0].item()) == (7, 7)
    assert storage is whole.untyped_storage()
    assert (rows.shape, again.stride()) == ((2, 3), (2,))


def test_memory_on_its_way_outlives_its_sender(torch):
    until(lambda: not open_files(), timeout=PATIENCE)
    with fiber.SimpleQueue() as queue:
        queue.put(in_shared_memory(torch, 1, 2))
        gc.collect()
        found = queue.get()
        assert found.tolist() == [1, 2]
        assert found.is_shared()
        del found
        until(lambda: not open_files(), timeout=PATIENCE)
        # and goes with what is dropped unread
        queue.put(in_shared_memory(torch, 3))
    until(lambda: not open_files(), timeout=PATIENCE)


def test_what_is_no_shared_memory_is_copied(torch, through_a_queue, tmp_path):
    (tmp_path / "numbers").write_bytes(bytes(16))
    mapped = torch.from_file(str(tmp_path / "numbers"), shared=True, size=4)
    for tensor in (torch.zeros(4), mapped, torch.empty(0).share_memory_()):
        found = through_a_queue(tensor)
        found += 1
        assert found.tolist() == [1] * len(tensor)
        assert tensor.tolist() == [0] * len(tensor)


def test_pickles_of_ones_own_and_shared_values_are_copies(torch, through_a_queue):
    tensor = in_shared_memory(torch, 1, 2)
    through_a_queue(tensor)
    saved = io.BytesIO()
    torch.save(tensor, saved)
    saved.seek(0)
    value = fiber.shared({"tensor": tensor}).value["tensor"]
    copies = [pickle.loads(pickle.dumps(tensor)), torch.load(saved), value, copy.deepcopy(tensor)]
    tensor += 1
    assert [one.tolist() for one in copies] == [[1, 2]] * 4


def test_a_process_of_another_host_gets_an_error_with_advice(torch):
    inbox, outbox = fiber.SimpleQueue(), fiber.SimpleQueue()
    child = start(get_elsewhere, inbox, outbox)
    inbox.put(in_shared_memory(torch, 1))
    error = outbox.get()
    child.join(PATIENCE)
    assert "a tensor in shared memory of process" in error
    assert "cannot be mapped here" in error
    assert "fiber.RawArray" in error


def test_the_death_of_its_process_takes_what_was_not_read(torch):
    outbox = fiber.SimpleQueue()
    child = start(make_and_wait, outbox)
    until(lambda: not outbox.empty(), timeout=PATIENCE)
    os.kill(child.pid, signal.SIGKILL)
    child.join(PATIENCE)
    with pytest.raises((PeerLostError, pickle.UnpicklingError), match="tensor in shared memory"):
        outbox.get()
