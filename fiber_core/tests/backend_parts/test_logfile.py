"""Lines of output."""

import pytest

from fiber.backend_parts.logfile import split_lines


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    "text, lines", [("ä\n\nbc\nd".encode(), ["ä", "", "bc", "d"]), (b"\xff\n", ["\ufffd"])]
)
def test_lines_are_whole_however_their_bytes_come(size, text, lines):
    assert list(split_lines(text[i : i + size] for i in range(0, len(text), size))) == lines
