"""Option values are parsed, or are errors with what is allowed."""

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
        (options.volume, "nfs:/data:ro", Volume(source="nfs", path="/data", read_only=True)),
        (options.volume, "nfs:ro", Volume(source="nfs", path="/persistent", read_only=True)),
        (options.volume, "nfs:/data:rw", Volume(source="nfs", path="/data")),
        (options.variable, "A=1", ("A", "1")),
        (options.variable, "A=", ("A", "")),
        (options.variable, "A=b=c", ("A", "b=c")),
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
        (options.volume, "nfs:/data:rx", "is no volume"),
        (options.variable, "=1", "is no variable"),
        (options.variable, "SURELY_NOT_SET", "is not set here"),
        (options.device, "tpu=0", "KIND=NUMBER"),
        (options.device, "tpu=many", "KIND=NUMBER"),
        (options.device, "=2", "KIND=NUMBER"),
    ],
)
def test_malformed_values_are_errors_with_what_is_allowed(read, word, told):
    with pytest.raises(click.BadParameter, match=told):
        read(word)


def test_a_variable_without_a_value_has_ours(monkeypatch):
    monkeypatch.setenv("TOKEN", "a b")

    assert options.variable("TOKEN") == ("TOKEN", "a b")
