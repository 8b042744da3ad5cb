"""Torch's tensors in shared memory where processes are on other hosts."""

import copy
import pickle

import pytest

import fiber
import require

pytestmark = pytest.mark.usefixtures("remote_host")


@pytest.fixture
def torch():
    require.need_module("torch")
    import torch

    return torch


def test_sharing_tensors_with_other_hosts_is_an_error_with_a_remedy(torch):
    tensor = torch.ones(1).share_memory_()
    model = torch.nn.Linear(2, 1).share_memory()
    message = "cannot be sent with the backend 'far'.*clone.*fiber.shared.*fiber.RawArray"
    with fiber.SimpleQueue() as queue:
        with pytest.raises(pickle.PicklingError, match=message):
            queue.put([tensor])
        queue.put([tensor.clone(), copy.deepcopy(model)])
        assert queue.get()[0].tolist() == [1]
    with pytest.raises(pickle.PicklingError, match=message):
        fiber.Process(target=print, args=(model,)).start()
