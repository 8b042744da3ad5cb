"""Words of options become values, or errors that say what is allowed."""

import click
import pytest

from fiber.cli import options
from fiber.model import Volume


@pytest.mark.parametrize(
    "read,word,value",
    [
        (options.cpus, "2", 2.0),
        (options.cpus, "500m", 0.5),
        (options.megabytes, "512", 512),
        (options.megabytes, "4Gi", 4096),
        (options.volume, "nfs", Volume(source="nfs", path="/persistent")),
        (options.volume, "nfs:/data", Volume(source="nfs", path="/data")),
        (options.volume, "/host/data:/data", Volume(source="/host/data", path="/data")),
        (options.device, "tpu", ("tpu", 1)),
        (options.device, "tpu=4", ("tpu", 4)),
    ],
)
def test_words_are_read(read, word, value):
    assert read(word) == value


@pytest.mark.parametrize(
    "read,word,told",
    [
        (options.cpus, "two", "positive number of CPUs"),
        (options.cpus, "0", "positive number of CPUs"),
        (options.megabytes, "12x", "Ki, Mi, Gi"),
        (options.volume, ":/data", "is no volume"),
        (options.volume, "nfs:data", "is no volume"),
        (options.device, "tpu=0", "KIND=NUMBER"),
        (options.device, "tpu=many", "KIND=NUMBER"),
        (options.device, "=2", "KIND=NUMBER"),
    ],
)
def test_words_that_make_no_sense_say_what_is_allowed(read, word, told):
    with pytest.raises(click.BadParameter, match=told):
        read(word)
