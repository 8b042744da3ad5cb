"""NVIDIA GPUs as ``nvidia-smi`` tells them, where NVML cannot be asked directly."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Sequence

from fiber._agent.resources.cuda import Gpu
from fiber.exceptions import ResourceError

__all__ = ["ask", "parse_instances", "parse_query"]

_FIELDS = ("index", "uuid", "name", "memory.total")
_QUERY = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_NO_DEVICES = 6
_TIMEOUT = 15.0
_GPU_LINE = re.compile(r"GPU (?P<index>\d+): ")
_MIG_LINE = re.compile(r"\s+MIG (?P<name>\S+)\s.*\(UUID: (?P<uuid>MIG-[^)]+)\)")


def ask() -> tuple[Gpu, ...]:
    """All GPUs of this host; empty where there is no nvidia-smi or it finds none.

    Raises:
        ResourceError: it failed, took too long or answered nonsense.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    answer = _run(program, *_QUERY)
    gpus = parse_query(answer) if answer else ()
    if not gpus:
        return ()
    instances = parse_instances(_run(program, "-L"))
    return tuple(
        found for gpu in gpus for found in [i for i in instances if i.index == gpu.index] or [gpu]
    )


def parse_query(output: str) -> tuple[Gpu, ...]:
    """Read the answer to ``--query-gpu`` for index, uuid, name and memory.

    Raises:
        ResourceError: a line has other fields; it is quoted.
    """
    gpus = []
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
        if gpu := _GPU_LINE.match(line):
            index = int(gpu["index"])
        elif instance := _MIG_LINE.match(line):
            instances.append(
                Gpu(index=index, uuid=instance["uuid"], name=f"MIG {instance['name']}")
            )
    return tuple(instances)


def _run(program: str, *arguments: str) -> str:
    argv: Sequence[str] = (program, *arguments)
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{program} gave no answer within {_TIMEOUT:g} s; the driver may hang, see dmesg"
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
