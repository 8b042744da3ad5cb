# ruff: noqa: N802 - the functions are named as pynvml names them
import sys
import types

import attrs
import pytest

from fiber._agent.resources import nvidia
from fiber._agent.resources.nvidia import Gpu


class FakeError(Exception):
    """Stand-in for pynvml.NVMLError."""


@attrs.define
class Card:
    uuid: str = "GPU-1"
    name: str = "NVIDIA H100 80GB HBM3"
    memory: int | None = 81559
    mig: bool | None = False
    instances: tuple = ()
    lost: bool = False


class FakeNvml(types.ModuleType):
    """The functions of pynvml that are called, over cards of ours; counts init and shutdown."""

    NVMLError = FakeError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, cards, driver=True):
        super().__init__("pynvml")
        self.cards = cards
        self.driver = driver
        self.opened = 0

    def nvmlInit(self):
        if not self.driver:
            raise FakeError("NVML Shared Library Not Found")
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.cards[index].lost:
            raise FakeError("GPU is lost")
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card):
        return card.uuid

    def nvmlDeviceGetName(self, card):
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card):
        if card.memory is None:
            raise FakeError("Not Supported")
        return types.SimpleNamespace(total=card.memory * 2**20)

    def nvmlDeviceGetMigMode(self, card):
        if card.mig is None:
            raise FakeError("Not Supported")
        return [int(card.mig), int(card.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, slot):
        if slot >= len(card.instances) or card.instances[slot] is None:
            raise FakeError("Not Found")
        return card.instances[slot]


@pytest.fixture
def install(monkeypatch):
    def make(*cards, driver=True):
        fake = FakeNvml(cards, driver)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return make


def test_without_nvidia_ml_py_the_answer_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert nvidia.ask_nvml() is None


def test_without_a_driver_the_answer_is_none(install):
    install(driver=False)

    assert nvidia.ask_nvml() is None


def test_gpus_have_uuid_name_and_memory(install):
    fake = install(Card(), Card(uuid="GPU-2", memory=40960))

    assert nvidia.ask_nvml() == (
        Gpu(index=0, uuid="GPU-1", name="NVIDIA H100 80GB HBM3", memory=81559),
        Gpu(index=1, uuid="GPU-2", name="NVIDIA H100 80GB HBM3", memory=40960),
    )
    assert fake.opened == 0


def test_old_versions_that_answer_with_bytes_are_read(install):
    install(Card(uuid=b"GPU-1", name=b"Tesla K80"))

    assert nvidia.ask_nvml() == (Gpu(index=0, uuid="GPU-1", name="Tesla K80", memory=81559),)


def test_a_gpu_without_memory_of_its_own_has_none(install):
    install(Card(memory=None, mig=None))

    assert nvidia.ask_nvml()[0].memory is None


def test_a_partitioned_gpu_is_replaced_by_its_instances(install):
    parts = (Card(uuid="MIG-1", memory=9856), None, Card(uuid="MIG-2", memory=40192))
    install(Card(mig=True, instances=parts), Card(uuid="GPU-2"))

    assert [(gpu.index, gpu.uuid) for gpu in nvidia.ask_nvml()] == [
        (0, "MIG-1"),
        (0, "MIG-2"),
        (1, "GPU-2"),
    ]


def test_one_lost_gpu_does_not_take_the_others_away(install, capsys):
    fake = install(Card(lost=True), Card(uuid="GPU-2"))

    assert [gpu.uuid for gpu in nvidia.ask_nvml()] == ["GPU-2"]
    assert "GPU 0 of this host is left out: GPU is lost" in capsys.readouterr().err
    assert fake.opened == 0
