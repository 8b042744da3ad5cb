#!/usr/bin/env python3
"""Multiply two tensors in a process that gets a GPU of its own.

    python examples/process_gpu.py          # waits for a GPU, and sees exactly that one
    python examples/process_gpu.py --cpu    # the same on the CPU

Needs PyTorch.
"""

from __future__ import annotations

import argparse
import os
import sys

import fiber as mp
from fiber.exceptions import SubmitError

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch: python3 -m pip install torch")


def multiply(factors: mp.SimpleQueue, products: mp.SimpleQueue, device: str) -> None:
    left, right = factors.get()
    product = left.to(device) @ right.to(device)
    where = torch.cuda.get_device_name(product.device) if product.is_cuda else "the CPU"
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    products.put((product.cpu(), where, seen))


@mp.meta(gpu=1)
def multiply_on_gpu(factors: mp.SimpleQueue, products: mp.SimpleQueue) -> None:
    multiply(factors, products, "cuda")


def multiply_on_cpu(factors: mp.SimpleQueue, products: mp.SimpleQueue) -> None:
    multiply(factors, products, "cpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--cpu", action="store_true", help="use the CPU, and ask for no GPU")
    target = multiply_on_cpu if parser.parse_args().cpu else multiply_on_gpu

    factors, products = mp.SimpleQueue(), mp.SimpleQueue()
    process = mp.Process(target=target, args=(factors, products))
    try:
        process.start()
    except SubmitError as error:
        sys.exit(f"{error}; --cpu does it without a GPU")
    left, right = torch.rand(256, 512), torch.rand(512, 128)
    factors.put((left, right))
    product, where, seen = products.get()
    process.join()

    print(f"multiplied {tuple(left.shape)} by {tuple(right.shape)} on {where}")
    if seen is not None:
        print(f"the process saw CUDA_VISIBLE_DEVICES={seen}")
    difference = (product - left @ right).abs().max().item()
    print(f"largest difference from the product computed here: {difference:.1e}")
    # a GPU adds in another order, with TF32 where that was allowed
    return 0 if difference < 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
