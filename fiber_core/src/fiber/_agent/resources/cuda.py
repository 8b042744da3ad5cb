"""Which GPUs CUDA lets a process see."""

from __future__ import annotations

from collections.abc import Sequence

from fiber._base import values

__all__ = ["Gpu", "visible"]


@values.frozen(kw_only=True)
class Gpu:
    """One GPU, or one instance of a partitioned one, as NVIDIA's software tells it."""

    #: number of the physical GPU, in the order of the PCI bus
    index: int
    #: ``GPU-…`` or ``MIG-…``; the index as text where the driver tells no UUID
    uuid: str
    #: model name
    name: str = ""
    #: memory in MB, where it is told
    memory: int | None = None


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """Those GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in their own order.

    Read as CUDA reads it: indices, UUIDs or their unambiguous beginnings; the first entry that
    names no GPU ends the list; a GPU named twice means that none is visible. An index is a number
    in the order of the PCI bus; of a partitioned GPU it stands for the first instance.

    Args:
        gpus: all of the host.
        setting: the variable's value; None where it is not set.
    """
    if setting is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in setting.split(","):
        gpu = _named(gpus, word.strip())
        if gpu is None:
            break
        if gpu in chosen:
            return ()
        chosen.append(gpu)
    return tuple(gpu for gpu in gpus if gpu in chosen)


def _named(gpus: Sequence[Gpu], word: str) -> Gpu | None:
    if word.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(word)), None)
    if not word.startswith(("GPU-", "MIG-")):
        return None
    whole = [gpu for gpu in gpus if gpu.uuid == word]
    matches = whole or [gpu for gpu in gpus if gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None
