import stat
import sys

import pytest

from fiber._agent.resources import nvidia
from fiber._agent.resources.nvidia import Gpu
from fiber.exceptions import ResourceError

TWO_GPUS = """\
0, GPU-5f2d1c3a-93e1-4b0a-8f50-3f1b2a6c7d01, NVIDIA H100 80GB HBM3, 81559
1, GPU-0b8e7712-4c1d-4e0f-9a55-c2d4e6f80a02, NVIDIA H100 80GB HBM3, 81559
"""
LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5f2d1c3a-93e1-4b0a-8f50-3f1b2a6c7d01)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-0b8e7712-4c1d-4e0f-9a55-c2d4e6f80a02)
"""
LISTED_WITH_INSTANCES = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5f2d1c3a-93e1-4b0a-8f50-3f1b2a6c7d01)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-0b8e7712-4c1d-4e0f-9a55-c2d4e6f80a02)
  MIG 3g.40gb     Device  0: (UUID: MIG-7a31e0c4-52b6-5e0d-8f1e-1b2c3d4e5f60)
  MIG 1g.10gb     Device  1: (UUID: MIG-c9d81f22-0e47-5a3b-b6a0-6f5e4d3c2b10)
"""
FIRST = Gpu(
    index=0,
    uuid="GPU-5f2d1c3a-93e1-4b0a-8f50-3f1b2a6c7d01",
    name="NVIDIA H100 80GB HBM3",
    memory=81559,
)
SECOND = Gpu(
    index=1,
    uuid="GPU-0b8e7712-4c1d-4e0f-9a55-c2d4e6f80a02",
    name="NVIDIA H100 80GB HBM3",
    memory=81559,
)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a program on PATH that answers as the recorded nvidia-smi did."""

    def make(query, listed="", code=0):
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"sys.stdout.write({listed!r} if '-L' in sys.argv else {query!r})\n"
            f"sys.exit({code})\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


class TestAsk:
    def test_without_the_program_there_are_no_gpus(self, install):
        assert nvidia.ask_nvidia_smi() == ()

    def test_gpus_are_what_it_lists(self, install):
        install(TWO_GPUS, LISTED)

        assert nvidia.ask_nvidia_smi() == (FIRST, SECOND)

    def test_a_partitioned_gpu_is_replaced_by_its_instances(self, install):
        install(TWO_GPUS, LISTED_WITH_INSTANCES)

        assert [gpu.uuid for gpu in nvidia.ask_nvidia_smi()] == [
            FIRST.uuid,
            "MIG-7a31e0c4-52b6-5e0d-8f1e-1b2c3d4e5f60",
            "MIG-c9d81f22-0e47-5a3b-b6a0-6f5e4d3c2b10",
        ]

    def test_a_driver_without_devices_is_no_error(self, install):
        install("No devices were found\n", code=6)

        assert nvidia.ask_nvidia_smi() == ()

    def test_a_driver_that_cannot_be_reached_is_an_error_in_its_words(self, install):
        install("NVIDIA-SMI has failed because it couldn't communicate with the driver", code=9)

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
    def test_a_program_that_gives_no_answer_is_an_error(self, install, tmp_path, program, words):
        install("")
        (tmp_path / "nvidia-smi").write_text(program)

        with pytest.raises(ResourceError, match=words):
            nvidia.ask_nvidia_smi(timeout=0.3)


class TestParseQuery:
    @pytest.mark.parametrize("memory", ["[N/A]", "[Not Supported]"])
    def test_unknown_memory_is_none(self, memory):
        (gpu,) = nvidia.parse_query(f"0, GPU-1, NVIDIA GB10, {memory}\n")

        assert gpu.memory is None

    def test_a_gpu_without_uuid_goes_by_its_index(self):
        (gpu,) = nvidia.parse_query("3, [N/A], Old card, 2048\n")

        assert gpu.uuid == "3"

    def test_empty_lines_are_passed_over(self):
        assert len(nvidia.parse_query(f"\n{TWO_GPUS}\n")) == 2

    @pytest.mark.parametrize("line", ["hello", "a, b, c, d", "0, GPU-1, name", "0, 1, 2, 3, 4"])
    def test_another_line_is_quoted(self, line):
        with pytest.raises(ResourceError, match=f"no GPU: '{line}'"):
            nvidia.parse_query(line)


def test_instances_know_their_gpu_and_profile():
    first, second = nvidia.parse_instances(LISTED_WITH_INSTANCES)

    assert (first.index, first.name) == (1, "MIG 3g.40gb")
    assert (second.index, second.name) == (1, "MIG 1g.10gb")
