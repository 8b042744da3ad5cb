"""NVIDIA GPUs: the built-in resource provider, and the program that lists those of a host.

``python -m fiber._agent.resources.nvidia --json`` asks NVML where nvidia-ml-py is installed (the
extra ``gpu``), else ``nvidia-smi``, and prints the GPUs that this process may use: entries that
CUDA_VISIBLE_DEVICES hides are left out, as CUDA itself reads that variable. A GPU that is
partitioned (MIG) is replaced by its instances, because CUDA programs can only use those.

Apart from ``plugin``, so that loading the plugins imports little.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fiber._base import values
from fiber.abc import ResourceProvider
from fiber.exceptions import ResourceError
from fiber.model.job import Device


@values.frozen(kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of a partitioned GPU."""

    #: number of the physical GPU, in the order of the PCI bus
    index: int
    #: ``GPU-…`` or ``MIG-…``; the index as text where the driver has no UUID
    uuid: str
    #: model name
    name: str = ""
    #: memory in MB, where it is known
    memory: int | None = None


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in the order of the PCI bus.

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


_FIELDS = ("index", "uuid", "name", "memory.total")
_QUERY = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_NO_DEVICES = 6
_GPU_LINE = r"GPU (?P<index>\d+): "
_MIG_LINE = r"\s+MIG (?P<name>\S+)\s.*\(UUID: (?P<uuid>MIG-[^)]+)\)"


def ask_nvidia_smi(timeout: float = 15.0) -> tuple[Gpu, ...]:
    """All GPUs of this host; empty where there is no nvidia-smi or it finds none.

    Args:
        timeout: seconds for an answer of it.

    Raises:
        ResourceError: it failed, took too long or answered nonsense.
    """
    import shutil

    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    answer = _run(program, *_QUERY, timeout=timeout)
    gpus = parse_query(answer) if answer else ()
    if not gpus:
        return ()
    instances = parse_instances(_run(program, "-L", timeout=timeout))
    return tuple(
        found for gpu in gpus for found in [i for i in instances if i.index == gpu.index] or [gpu]
    )


def parse_query(output: str) -> tuple[Gpu, ...]:
    """Read the answer to ``--query-gpu`` for index, uuid, name and memory.

    Raises:
        ResourceError: a line has other fields; it is quoted.
    """
    gpus = []
    import csv

    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(_FIELDS) or not row[0].strip().isdecimal():
            msg = f"nvidia-smi answered a line that is no GPU: {', '.join(row)!r}"
            raise ResourceError(msg)
        index, uuid, name, memory = (field.strip() for field in row)
        gpus.append(
            Gpu(
                index=int(index),
                uuid=uuid if uuid.startswith("GPU-") else index,
                name=name,
                # "[N/A]" and "[Not Supported]" where a device shares the host's memory
                memory=int(memory) if memory.isdecimal() else None,
            )
        )
    return tuple(gpus)


def parse_instances(output: str) -> tuple[Gpu, ...]:
    """Read the MIG instances, each with its GPU's index, from the answer to ``-L``."""
    instances = []
    index = 0
    for line in output.splitlines():
        if gpu := re.match(_GPU_LINE, line):
            index = int(gpu["index"])
        elif instance := re.match(_MIG_LINE, line):
            instances.append(
                Gpu(index=index, uuid=instance["uuid"], name=f"MIG {instance['name']}")
            )
    return tuple(instances)


def _run(program: str, *arguments: str, timeout: float) -> str:
    argv: Sequence[str] = (program, *arguments)
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{program} gave no answer within {timeout:g} s; the driver may hang, see dmesg"
        raise ResourceError(msg) from error
    except OSError as error:
        msg = f"{program} could not be started: {error}"
        raise ResourceError(msg) from error
    if done.returncode == _NO_DEVICES:
        return ""
    if done.returncode != 0:
        words = done.stdout.strip() or done.stderr.strip() or "it said nothing"
        msg = f"{program} failed with exit code {done.returncode}: {words}"
        raise ResourceError(msg)
    return done.stdout


_MEBI = 2**20


def ask_nvml() -> tuple[Gpu, ...] | None:
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
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
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
    gpus = ask_nvml()
    if gpus is None:
        gpus = ask_nvidia_smi()
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
