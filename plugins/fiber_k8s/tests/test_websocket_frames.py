"""Encoded frames of a client, and parsed frames of a server in pieces of any size."""

import random
import struct

import pytest

from fiber.exceptions import BackendError
from fiber_k8s.websocket_frames import BINARY, CLOSE, PING, TEXT, FrameParser, encode_frame


def of_server(opcode, body, final=True):
    """A frame as a server writes it: not masked."""
    head = bytes([(0x80 if final else 0) | opcode])
    if len(body) < 126:
        return head + bytes([len(body)]) + body
    if len(body) < 1 << 16:
        return head + b"\x7e" + struct.pack("!H", len(body)) + body
    return head + b"\x7f" + struct.pack("!Q", len(body)) + body


def unmasked(data):
    """Opcode and body of one frame of a client."""
    size, begin = data[1] & 0x7F, 2
    assert data[1] & 0x80
    if size == 126:
        size, begin = struct.unpack("!H", data[2:4])[0], 4
    elif size == 127:
        size, begin = struct.unpack("!Q", data[2:10])[0], 10
    mask, body = data[begin : begin + 4], data[begin + 4 :]
    assert len(body) == size
    return data[0] & 0x0F, bytes(byte ^ mask[n % 4] for n, byte in enumerate(body))


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 70001])
def test_client_frames_are_masked(size):
    body = random.Random(size).randbytes(size)
    assert unmasked(encode_frame(BINARY, b"\x00", body)) == (BINARY, b"\x00" + body)


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_server_frames_are_parsed(size):
    body = random.Random(size).randbytes(size)
    assert FrameParser().feed(of_server(BINARY, body)) == [(BINARY, body)]


def test_it_may_come_in_any_pieces():
    data = of_server(BINARY, b"a" * 200) + of_server(PING, b"") + of_server(CLOSE, b"\x03\xe8")
    frames = FrameParser()
    found = [one for n in range(len(data)) for one in frames.feed(data[n : n + 1])]
    assert found == [(BINARY, b"a" * 200), (PING, b""), (CLOSE, b"\x03\xe8")]


def test_a_message_may_be_several_frames_with_a_ping_between():
    data = of_server(TEXT, b"a", final=False) + of_server(PING, b"?") + of_server(0, b"b")
    assert FrameParser().feed(data) == [(PING, b"?"), (TEXT, b"ab")]


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 502 Bad Gateway", b"\x82\x81abcdx", b"\x82\x7f" + b"\xff" * 8]
)
def test_other_bytes_are_no_websocket(data):
    with pytest.raises(BackendError, match="WebSocket"):
        FrameParser().feed(data)
