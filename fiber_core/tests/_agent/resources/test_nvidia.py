import json
import os
import pickle
import sys

import pluggy
import pytest

from fiber import hookspecs
from fiber._agent.resources import nvidia, plugin
from fiber._agent.resources.nvidia import Gpu, NvidiaProvider, visible
from fiber._agent.resources.probe import probe
from fiber.exceptions import ResourceError
from fiber.model import Device

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

    def test_nvidia_smi_is_asked_where_nvml_knows_nothing(self, monkeypatch, capsys):
        monkeypatch.setattr(nvidia, "ask_nvml", lambda: None)
        monkeypatch.setattr(nvidia, "ask_nvidia_smi", lambda: TWO[1:])

        assert nvidia.main(["--json"], {}) == 0
        assert json.loads(capsys.readouterr().out)[0]["uuid"] == "GPU-b"

    def test_a_failure_goes_to_stderr_with_exit_code_1(self, monkeypatch, capsys):
        def fail():
            msg = "nvidia-smi failed"
            raise ResourceError(msg)

        monkeypatch.setattr(nvidia, "ask_nvml", lambda: None)
        monkeypatch.setattr(nvidia, "ask_nvidia_smi", fail)

        assert nvidia.main(["--json"], {}) == 1
        assert capsys.readouterr() == ("", "nvidia-smi failed\n")

    def test_another_argument_is_answered_with_the_usage(self, capsys):
        assert nvidia.main(["--xml"], {}) == 2
        assert "usage:" in capsys.readouterr().err


class TestProvider:
    @pytest.mark.parametrize("output", ["", "hello", "{}", "3", "[3]", '[{"uuid": "GPU-a"}]'])
    def test_output_that_makes_no_sense_is_quoted(self, output):
        with pytest.raises(ResourceError, match="no list of NVIDIA GPUs, but"):
            NvidiaProvider().parse(output)

    def test_a_process_sees_its_devices_by_uuid(self):
        devices = [Device(kind="gpu", id=f"GPU-{name}", index=i) for i, name in enumerate("ab")]

        assert NvidiaProvider().environment(devices) == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        }

    def test_a_process_without_devices_sees_none(self):
        assert NvidiaProvider().environment([])["CUDA_VISIBLE_DEVICES"] == ""

    def test_it_is_picklable(self):
        assert pickle.loads(pickle.dumps(NvidiaProvider())).kind == "gpu"


def test_the_probe_runs_as_a_program_and_answers_with_the_gpus_of_this_host(tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"#!{sys.executable}\nimport sys\nif '-L' not in sys.argv: print('0, GPU-x, Card, 1024')\n"
    )
    smi.chmod(0o755)
    (tmp_path / "pynvml.py").write_text("raise ImportError('hidden, whatever is installed')\n")
    environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    path = os.pathsep.join(filter(None, [str(tmp_path), environ.get("PYTHONPATH")]))

    devices = probe(
        NvidiaProvider(), environ={**environ, "PATH": str(tmp_path), "PYTHONPATH": path}
    )

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


def test_nvidia_is_offered_through_the_hook_of_third_parties():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()

    (answer,) = manager.hook.fiber_resource_providers()

    assert [provider.kind for provider in answer] == ["gpu"]
