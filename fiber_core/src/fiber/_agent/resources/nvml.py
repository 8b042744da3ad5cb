"""NVIDIA GPUs as NVML tells them, through nvidia-ml-py (the extra ``gpu``)."""

from __future__ import annotations

import sys
from typing import Any

from fiber._agent.resources.cuda import Gpu

__all__ = ["ask"]

_MEBI = 2**20


def ask() -> tuple[Gpu, ...] | None:
    """All GPUs of this host; None where NVML is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found: list[Gpu] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.extend(_instances(pynvml, index, handle) or [_gpu(pynvml, index, handle)])
            except pynvml.NVMLError as error:
                # one broken GPU must not take the others away
                print(f"GPU {index} of this host is left out: {error}", file=sys.stderr)
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    try:
        memory: int | None = nvml.nvmlDeviceGetMemoryInfo(handle).total // _MEBI
    except nvml.NVMLError:
        # not every device has memory of its own (Jetson, GB10)
        memory = None
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)) or str(index),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory=memory,
    )


def _instances(nvml: Any, index: int, handle: Any) -> list[Gpu]:
    """The MIG instances of a GPU; empty where it is not partitioned."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        # the GPU's architecture has no MIG
        return []
    instances = []
    for slot in range(slots):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError:
            # NVML numbers slots, used or not
            continue
        instances.append(_gpu(nvml, index, instance))
    return instances


def _text(value: str | bytes) -> str:
    # nvidia-ml-py before 12 answers with bytes
    return value.decode() if isinstance(value, bytes) else value
