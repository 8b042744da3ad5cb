#!/usr/bin/env python3
"""Train a small convolutional network on several processes at once with torch.distributed.

    python examples/ring.py                     # two members on the CPU, with gloo
    python examples/ring.py --members 4
    python examples/ring.py --gpu               # a GPU for each member, with nccl
    python examples/ring.py --crash             # a member is killed on the way; training goes on

The data set is made on the spot: noisy pictures of horizontal and vertical bars. Every member learns
from its own part of it, and the gradients are averaged after each step, so all end with the same
network. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys

import fiber
from fiber.experimental import Ring, RingView, current_ring

try:
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError:
    sys.exit("this example needs PyTorch: python3 -m pip install torch")

PICTURES = 2048
SIDE = 8
BATCH = 64
EPOCHS = 4


def pictures(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with one bar in it, and whether that is horizontal."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    labels = torch.randint(0, 2, (count,), generator=generator)
    places = torch.randint(0, SIDE, (count,), generator=generator)
    for image, label, place in zip(images, labels, places, strict=True):
        bar = image[0, place, :] if label else image[0, :, place]
        bar += 2.0
    return images, labels


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def join_the_others(ring: RingView, backend: str, crash: bool) -> None:
    """In each member, before it trains."""
    dist.init_process_group(backend)
    # members of one host share its processors
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    global CRASHES  # noqa: PLW0603 - said once, for this process
    CRASHES = crash and ring.restarts == 0 and ring.rank == ring.size - 1


CRASHES = False


def average_gradients(model: nn.Module, size: int) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= size


def train(rank: int, size: int) -> tuple[float, str]:
    """Accuracy on pictures that nobody has seen, and a digest of the network."""
    ring = current_ring()
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    images, labels = (part[rank::size].to(device) for part in pictures(1, PICTURES))
    torch.manual_seed(7)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if ring.state is not None:
        # all ranks were started again, and this is what a surviving one knew
        first = ring.step
        model.load_state_dict(ring.state["model"])
        optimizer.load_state_dict(ring.state["optimizer"])
    for epoch in range(first, EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH // size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            average_gradients(model, size)
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        ring.commit(state, step=epoch + 1)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
        if CRASHES and epoch == 1:
            # at once and without a word, as a machine that fails
            os.kill(os.getpid(), signal.SIGKILL)
    unseen, truth = (part.to(device) for part in pictures(2, 512))
    with torch.no_grad():
        accuracy = (model(unseen).argmax(1) == truth).float().mean().item()
    weights = repr([parameter.tolist() for parameter in model.parameters()])
    return accuracy, hashlib.sha256(weights.encode()).hexdigest()[:16]


@fiber.meta(gpu=1)
def train_on_gpu(rank: int, size: int) -> tuple[float, str]:
    return train(rank, size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each member")
    parser.add_argument("--crash", action="store_true", help="kill a member after two epochs")
    arguments = parser.parse_args()

    ring = Ring(
        arguments.members,
        train_on_gpu if arguments.gpu else train,
        join_the_others,
        ("nccl" if arguments.gpu else "gloo", arguments.crash),
        framework="torch",
        max_restarts=1,
    )
    results = ring.run()

    for rank, (accuracy, digest) in enumerate(results):
        print(f"rank {rank}: accuracy {accuracy:.3f}, network {digest}")
    print(f"restarts: {ring.status().restarts}")
    same = len({digest for _, digest in results}) == 1
    return 0 if same and results[0][0] > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
