"""Options of sbatch and srun from a job's specification and the settings; pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from fiber.backend_parts.batch.system import Batch
from fiber.exceptions import ConfigError
from fiber.model import ResourceRequest
from fiber_slurm.config import SlurmConfig

__all__ = ["device_names", "devices", "submission"]


def submission(batch: Batch, config: SlurmConfig) -> Sequence[str]:
    """Command that submits jobs; the script is its standard input.

    Raises:
        ConfigError: a setting makes no sense.
    """
    request = batch.spec.resources
    number = f"-{len(batch.specs) - 1}" if len(batch.specs) > 1 else ""
    output = str(batch.output).replace("%", "%%")
    words = [
        *("sbatch", "--parsable", "--no-requeue"),
        f"--job-name={batch.name}",
        f"--comment={_comment(batch.spec.name)}",
        "--chdir=/",
        "--input=/dev/null",
        f"--output={output}",
        "--open-mode=append",
        "--ntasks=1",
        # of sbatch, whose own environment has nothing of the user's
        "--export=ALL",
    ]
    if number:
        words.append(f"--array=0{number}")
    settings = {
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "time": config.time,
        "constraint": config.constraint,
    }
    words += [f"--{name}={value}" for name, value in settings.items() if value]
    if request.cpu is not None:
        words.append(f"--cpus-per-task={math.ceil(request.cpu)}")
    if request.memory is not None:
        words.append(f"--mem={request.memory}M")
    if wanted := devices(request, config):
        words.append(f"--gres={wanted}")
    if batch.spec.avoid_hosts:
        words.append(f"--exclude={','.join(batch.spec.avoid_hosts)}")
    try:
        words += shlex.split(config.options)
    except ValueError as error:
        msg = f"the setting options of slurm is {config.options!r}: {error}"
        raise ConfigError(msg) from error
    return words


def devices(request: ResourceRequest, config: SlurmConfig) -> str:
    """The generic resources that a job asks for, as ``--gres`` has them; empty where it asks for none."""
    wanted = {kind: count for kind, count in request.devices.items() if count}
    names = device_names(config) if wanted else {}
    return ",".join(f"{names.get(kind, kind)}:{count}" for kind, count in sorted(wanted.items()))


def device_names(config: SlurmConfig) -> dict[str, str]:
    """Names of generic resources by kind of device."""
    names = {}
    for word in config.gres:
        kind, equals, name = word.partition("=")
        if not (kind and equals and name):
            msg = f"the setting gres of slurm has {word!r}, expected KIND=NAME such as gpu=gpu:a100"
            raise ConfigError(msg)
        names[kind] = name
    return names


def _comment(name: str) -> str:
    """A job's name, for people who look at the queue."""
    return re.sub(r"[^\w.:+-]+", "_", name, flags=re.ASCII)[:80] or "fiber"
