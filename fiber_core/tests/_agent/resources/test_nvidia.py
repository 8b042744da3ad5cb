"""GPUs are found by NVML or nvidia-smi, named as CUDA names them, and offered to jobs."""

# ruff: noqa: N802 - functions are named as pynvml names them
import json
import os
import sys
import types
from unittest.mock import Mock

import attrs
import pytest

from fiber._agent.resources import nvidia, probe
from fiber._agent.resources.nvidia import Gpu, NvidiaProvider, visible
from fiber.exceptions import ResourceError
from fiber.model import Device

H100 = "NVIDIA H100 80GB HBM3"
QUERY = f"""\
0, GPU-5f2d, {H100}, 81559
1, GPU-0b8e, {H100}, 81559
"""
FIRST = Gpu(index=0, uuid="GPU-5f2d", name=H100, memory=81559)
SECOND = Gpu(index=1, uuid="GPU-0b8e", name=H100, memory=81559)
LISTED = f"""\
GPU 0: {H100} (UUID: GPU-5f2d)
GPU 1: {H100} (UUID: GPU-0b8e)
"""
INSTANCES = """\
  MIG 3g.40gb     Device  0: (UUID: MIG-7a31)
  MIG 1g.10gb     Device  1: (UUID: MIG-c9d8)
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Put a program on PATH that answers as the recorded nvidia-smi did."""

    def make(query, listed="", code=0):
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"sys.stdout.write({listed!r} if '-L' in sys.argv else {query!r})\n"
            f"sys.exit({code})\n"
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


class TestNvidiaSmi:
    def test_without_the_program_there_are_no_gpus(self, smi):
        assert nvidia.ask_nvidia_smi() == ()

    def test_gpus_are_what_it_lists_and_a_partitioned_one_is_replaced_by_its_instances(self, smi):
        smi(QUERY, LISTED)
        assert nvidia.ask_nvidia_smi() == (FIRST, SECOND)

        smi(QUERY, LISTED + INSTANCES)
        first, *instances = nvidia.ask_nvidia_smi()
        assert first == FIRST
        assert [(gpu.index, gpu.uuid, gpu.name) for gpu in instances] == [
            (1, "MIG-7a31", "MIG 3g.40gb"),
            (1, "MIG-c9d8", "MIG 1g.10gb"),
        ]

    def test_a_driver_without_devices_is_no_error(self, smi):
        smi("No devices were found\n", code=6)

        assert nvidia.ask_nvidia_smi() == ()

    def test_a_driver_that_cannot_be_reached_is_an_error_in_its_words(self, smi):
        smi("NVIDIA-SMI has failed because it couldn't communicate with the driver", code=9)

        with pytest.raises(ResourceError, match="exit code 9: NVIDIA-SMI has failed because"):
            nvidia.ask_nvidia_smi()

    @pytest.mark.parametrize(
        "program, words",
        [
            ("#!/no/such/interpreter\n", "could not be started"),
            (f"#!{sys.executable}\nimport signal\nsignal.pause()\n", "no answer within 0.3 s"),
        ],
        ids=["cannot be started", "hangs"],
    )
    def test_a_program_that_gives_no_answer_is_an_error(self, smi, tmp_path, program, words):
        smi("")
        (tmp_path / "nvidia-smi").write_text(program)

        with pytest.raises(ResourceError, match=words):
            nvidia.ask_nvidia_smi(timeout=0.3)

    @pytest.mark.parametrize(
        "line, uuid, memory",
        [
            ("0, GPU-1, NVIDIA GB10, [N/A]", "GPU-1", None),
            ("0, GPU-1, NVIDIA GB10, [Not Supported]", "GPU-1", None),
            # one without a uuid goes by its index
            ("\n3, [N/A], Old card, 2048\n\n", "3", 2048),
        ],
    )
    def test_what_it_does_not_know_is_left_out(self, line, uuid, memory):
        (gpu,) = nvidia.parse_query(line)

        assert (gpu.uuid, gpu.memory) == (uuid, memory)

    @pytest.mark.parametrize("line", ["hello", "a, b, c, d", "0, GPU-1, name", "0, 1, 2, 3, 4"])
    def test_another_line_is_quoted(self, line):
        with pytest.raises(ResourceError, match=f"no GPU: '{line}'"):
            nvidia.parse_query(line)


class FakeError(Exception):
    """Stand-in for pynvml.NVMLError."""


@attrs.define
class Card:
    uuid: str = "GPU-1"
    name: str = H100
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


class TestNvml:
    @pytest.fixture
    def install(self, monkeypatch):
        def make(*cards, driver=True):
            fake = FakeNvml(cards, driver)
            monkeypatch.setitem(sys.modules, "pynvml", fake)
            return fake

        return make

    def test_without_nvidia_ml_py_or_a_driver_the_answer_is_none(self, install, monkeypatch):
        install(driver=False)
        assert nvidia.ask_nvml() is None

        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert nvidia.ask_nvml() is None

    def test_gpus_have_uuid_name_and_memory(self, install):
        # old versions answer with bytes, and not every GPU has memory of its own
        fake = install(
            Card(), Card(b"GPU-2", b"Tesla K80", 40960), Card("GPU-3", "GB10", None, None)
        )

        assert nvidia.ask_nvml() == (
            Gpu(index=0, uuid="GPU-1", name=H100, memory=81559),
            Gpu(index=1, uuid="GPU-2", name="Tesla K80", memory=40960),
            Gpu(index=2, uuid="GPU-3", name="GB10", memory=None),
        )
        assert fake.opened == 0

    def test_a_partitioned_gpu_is_replaced_by_its_instances(self, install):
        parts = (Card(uuid="MIG-1", memory=9856), None, Card(uuid="MIG-2", memory=40192))
        install(Card(mig=True, instances=parts), Card(uuid="GPU-2"))

        assert [(gpu.index, gpu.uuid) for gpu in nvidia.ask_nvml()] == [
            (0, "MIG-1"),
            (0, "MIG-2"),
            (1, "GPU-2"),
        ]

    def test_one_lost_gpu_does_not_take_the_others_away(self, install, capsys):
        fake = install(Card(lost=True), Card(uuid="GPU-2"))

        assert [gpu.uuid for gpu in nvidia.ask_nvml()] == ["GPU-2"]
        assert "GPU 0 of this host is left out: GPU is lost" in capsys.readouterr().err
        assert fake.opened == 0


TWO = (
    Gpu(index=0, uuid="GPU-a", name="NVIDIA H100", memory=81559),
    Gpu(index=1, uuid="GPU-b", name="NVIDIA H100", memory=None),
)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(nvidia, "ask_nvml", lambda: TWO)


class TestMain:
    def test_json_is_what_the_provider_parses(self, two_gpus, capsys):
        assert nvidia.main(["--json"], {}) == 0

        assert NvidiaProvider().parse(capsys.readouterr().out) == (
            Device(kind="gpu", id="GPU-a", index=0, name="NVIDIA H100", memory=81559),
            Device(kind="gpu", id="GPU-b", index=1, name="NVIDIA H100", memory=None),
        )

    def test_without_json_it_is_a_line_each_for_people(self, two_gpus, capsys):
        assert nvidia.main([], {}) == 0

        assert capsys.readouterr().out.splitlines() == [
            "0: NVIDIA H100 (GPU-a, 81559 MB)",
            "1: NVIDIA H100 (GPU-b)",
        ]

    def test_gpus_that_the_parent_may_not_use_are_left_out(self, two_gpus, capsys):
        nvidia.main(["--json"], {"CUDA_VISIBLE_DEVICES": "GPU-b"})

        assert [gpu["index"] for gpu in json.loads(capsys.readouterr().out)] == [1]

    def test_a_failure_goes_to_stderr_with_exit_code_1(self, monkeypatch, capsys):
        failed = Mock(side_effect=ResourceError("nvidia-smi failed"))
        monkeypatch.setattr(nvidia, "ask_nvml", lambda: None)
        monkeypatch.setattr(nvidia, "ask_nvidia_smi", failed)

        assert nvidia.main(["--json"], {}) == 1
        assert capsys.readouterr() == ("", "nvidia-smi failed\n")

    def test_another_argument_is_answered_with_the_usage(self, capsys):
        assert nvidia.main(["--xml"], {}) == 2
        assert "usage:" in capsys.readouterr().err

    def test_a_process_sees_its_devices_by_uuid(self):
        devices = [Device(kind="gpu", id=f"GPU-{name}", index=i) for i, name in enumerate("ab")]

        assert NvidiaProvider().environment(devices) == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        }

        assert NvidiaProvider().environment([])["CUDA_VISIBLE_DEVICES"] == ""


def test_the_probe_runs_as_a_program_and_answers_with_the_gpus_of_this_host(smi, tmp_path):
    smi("0, GPU-x, Card, 1024\n")
    (tmp_path / "pynvml.py").write_text("raise ImportError('hidden, whatever is installed')\n")
    environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    path = os.pathsep.join(filter(None, [str(tmp_path), environ.get("PYTHONPATH")]))

    devices = probe(NvidiaProvider(), environ={**environ, "PYTHONPATH": path})

    assert devices == (Device(kind="gpu", id="GPU-x", index=0, name="Card", memory=1024),)


A = Gpu(index=0, uuid="GPU-aaaa-1", name="H100", memory=81559)
B = Gpu(index=1, uuid="GPU-aabb-2", name="H100", memory=81559)
C = Gpu(index=2, uuid="GPU-cccc-3", name="H100", memory=81559)
ALL = (A, B, C)


@pytest.mark.parametrize(
    "setting, expected",
    [
        pytest.param(None, ALL, id="not set"),
        *(pytest.param(word, (), id=repr(word)) for word in ("", "-1", "NoDevFiles", "none", " ")),
        ("0", (A,)),
        ("2,0", (A, C)),
        (" 1 , 2 ", (B, C)),
        ("GPU-cccc-3", (C,)),
        ("GPU-cc,0", (A, C)),
        ("GPU-aab", (B,)),
        # the first entry that names none ends the list
        *((words, (A,)) for words in ("0,9,1", "0,-1,1", "0,,1", "0,GPU-aa,1", "0,x,1")),
        # one that is named twice hides all
        ("0,GPU-aaaa-1", ()),
    ],
)
def test_indices_uuids_and_their_beginnings_name_visible_gpus(setting, expected):
    assert visible(ALL, setting) == expected


def test_of_a_partitioned_gpu_an_index_stands_for_the_first_instance():
    first = Gpu(index=0, uuid="MIG-1")
    second = Gpu(index=0, uuid="MIG-2")

    assert visible((first, second, B), "0,1") == (first, B)
    assert visible((first, second, B), "MIG-2") == (second,)
