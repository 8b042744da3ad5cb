import pytest

from fiber._agent.resources.nvidia import Gpu, visible

A = Gpu(index=0, uuid="GPU-aaaa-1", name="H100", memory=81559)
B = Gpu(index=1, uuid="GPU-aabb-2", name="H100", memory=81559)
C = Gpu(index=2, uuid="GPU-cccc-3", name="H100", memory=81559)
ALL = (A, B, C)


def test_without_the_variable_all_are_visible():
    assert visible(ALL, None) == ALL


@pytest.mark.parametrize("setting", ["", "-1", "NoDevFiles", "none", " "])
def test_a_value_that_names_no_gpu_hides_all(setting):
    assert visible(ALL, setting) == ()


@pytest.mark.parametrize(
    "setting,expected",
    [
        ("0", (A,)),
        ("2,0", (A, C)),
        (" 1 , 2 ", (B, C)),
        ("GPU-cccc-3", (C,)),
        ("GPU-cc,0", (A, C)),
        ("GPU-aab", (B,)),
    ],
)
def test_indices_uuids_and_their_beginnings_name_gpus(setting, expected):
    assert visible(ALL, setting) == expected


@pytest.mark.parametrize("setting", ["0,9,1", "0,-1,1", "0,,1", "0,GPU-aa,1", "0,x,1"])
def test_the_first_entry_that_names_no_gpu_ends_the_list(setting):
    assert visible(ALL, setting) == (A,)


def test_a_gpu_that_is_named_twice_hides_all():
    assert visible(ALL, "0,GPU-aaaa-1") == ()


def test_of_a_partitioned_gpu_an_index_stands_for_the_first_instance():
    first = Gpu(index=0, uuid="MIG-1")
    second = Gpu(index=0, uuid="MIG-2")

    assert visible((first, second, B), "0,1") == (first, B)
    assert visible((first, second, B), "MIG-2") == (second,)
