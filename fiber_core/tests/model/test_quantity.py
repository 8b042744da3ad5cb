import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber.model.resource import megabytes


@pytest.mark.parametrize(
    "value,expected",
    [
        (1, 1),
        (4096, 4096),
        ("4Gi", 4096),
        ("512Mi", 512),
        ("1.5Gi", 1536),
        (".5Gi", 512),
        (" 2Gi ", 2048),
        ("1Ti", 1024 * 1024),
        ("1G", 954),
        ("1M", 1),
        ("1e9", 954),
        ("1E9", 954),
        ("12e+8", 1145),
        ("1Ki", 1),
        ("1Ei", 2**40),
        ("1E", 953674316407),
    ],
)
def test_an_amount_is_read_in_mebibytes_rounded_up(value, expected):
    assert megabytes(value) == expected


@given(st.integers(1, 2**30))
def test_a_number_and_the_same_number_of_mebibytes_agree(number):
    assert megabytes(number) == megabytes(f"{number}Mi") == number


@pytest.mark.parametrize("value", [0, -1, "0Gi", "0e5"])
def test_amounts_that_are_not_positive_are_refused(value):
    with pytest.raises(ValueError, match="memory must be positive"):
        megabytes(value)


@pytest.mark.parametrize("value", [1.5, True, None, b"4Gi", ["4Gi"]])
def test_other_types_are_refused(value):
    with pytest.raises(TypeError, match="memory must be MB as a whole number"):
        megabytes(value)


@pytest.mark.parametrize("value", ["", "Gi", "four", "-4Gi", "4GiB", "4gi", "4GB", "4 Gi", "1ee9"])
def test_a_text_that_is_no_quantity_is_an_error_with_what_is_allowed(value):
    with pytest.raises(ValueError, match=r"memory '.*' is no quantity: allowed .* Gi"):
        megabytes(value)


def test_a_text_without_unit_is_refused_because_kubernetes_would_read_bytes():
    with pytest.raises(ValueError, match="'4096' has no unit: write the number 4096 itself"):
        megabytes("4096")


def test_the_suffix_that_docker_and_kubernetes_read_differently_is_refused():
    with pytest.raises(ValueError, match="counts thousandths of a byte: write '512Mi'"):
        megabytes("512m")
