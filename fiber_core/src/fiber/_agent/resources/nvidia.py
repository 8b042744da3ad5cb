"""NVIDIA GPUs: the built-in resource provider, and the program that finds them on a host.

``python -m fiber._agent.resources.nvidia --json`` asks NVML where nvidia-ml-py is installed, else
``nvidia-smi``, and prints what this process may use, CUDA_VISIBLE_DEVICES respected. A GPU that
is partitioned (MIG) is replaced by its instances, because CUDA programs can only use those.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from fiber._agent.resources import nvidia_smi, nvml
from fiber._agent.resources.cuda import Gpu, visible
from fiber._base import values
from fiber.abc import ResourceProvider
from fiber.exceptions import ResourceError
from fiber.model.resource import Device

__all__ = ["NvidiaProvider", "find", "main"]

_QUOTED = 200


class NvidiaProvider(ResourceProvider):
    """Finds NVIDIA GPUs and makes processes see theirs."""

    kind = "gpu"
    device_class = "nvidia.com/gpu"

    def probe(self) -> Sequence[str]:
        """This module, run by a Python that has fiber."""
        return ("{python}", "-m", "fiber._agent.resources.nvidia", "--json")

    def parse(self, output: str) -> Sequence[Device]:
        """Read the JSON that the probe prints."""
        try:
            entries = json.loads(output)
            if not isinstance(entries, list):
                raise TypeError(type(entries).__name__)
            return tuple(
                Device(
                    kind=self.kind,
                    id=str(entry["uuid"]),
                    index=int(entry["index"]),
                    name=str(entry["name"]),
                    memory=None if entry["memory"] is None else int(entry["memory"]),
                )
                for entry in entries
            )
        except (ValueError, TypeError, KeyError) as error:
            msg = f"no list of NVIDIA GPUs, but {output.strip()[:_QUOTED]!r}"
            raise ResourceError(msg) from error

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """CUDA_VISIBLE_DEVICES by UUID; empty for no device, so that none is seen."""
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(device.id for device in devices),
        }


def find(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of this host that a process with this environment may use.

    Raises:
        ResourceError: nvidia-smi is here and failed; the text has its words.
    """
    gpus = nvml.ask()
    if gpus is None:
        gpus = nvidia_smi.ask()
    return visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the GPUs, as JSON with ``--json`` and else a line each; return the exit code."""
    if any(word != "--json" for word in argv):
        print("usage: python -m fiber._agent.resources.nvidia [--json]", file=sys.stderr)
        return 2
    try:
        gpus = find(environ)
    except ResourceError as error:
        print(error, file=sys.stderr)
        return 1
    if "--json" in argv:
        print(json.dumps([values.asdict(gpu) for gpu in gpus]))
    else:
        for gpu in gpus:
            memory = "" if gpu.memory is None else f", {gpu.memory} MB"
            print(f"{gpu.index}: {gpu.name} ({gpu.uuid}{memory})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
