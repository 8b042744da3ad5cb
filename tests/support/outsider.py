"""Somebody without a key, who tries addresses: ``python -I -S - SECONDS ADDRESSES < outsider.py``.

Each address, a path or host and port, is connected to three times, to say nothing, nonsense, and what
a client of TLS says first; what came of that is printed as the guide words it. There is no way to an
address that is null. Needs the standard library alone, and first gives up what root may do.
"""

import contextlib
import json
import os
import re
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NOBODY = 65534


def client_hello() -> bytes:
    """The first bytes of a client of TLS."""
    said = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="stranger")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return said.read()


def _try(address: str | list, words: bytes, seconds: float) -> tuple[bytes, str] | None:
    """What came until the end of a connection, and how it ended; None where there was none."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as stranger:
        stranger.settimeout(seconds)
        try:
            stranger.connect(address if isinstance(address, str) else tuple(address))
        except OSError:
            return None
        came = b""
        try:
            stranger.sendall(words)
            while piece := stranger.recv(4096):
                came += piece
        except TimeoutError:
            return came, "left open"
        except OSError:
            # reset, as what is cut off with bytes unread is
            pass
        return came, "cut off"


def _outcome(address: str | list | None, sayings: list[bytes], seconds: float) -> str:
    if address is None:
        return "no way"
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda words: _try(address, words, seconds), sayings))
    if None in found:
        # of a port there is no folder
        with contextlib.suppress(OSError, TypeError):
            next(Path(address).parent.iterdir())
            return "no connection, and a folder that can be listed"
        return "no connection"
    came, text = (
        b"".join(each[0] for each in found),
        re.match(rb"\w{3,}", found[0][0] + found[1][0]),
    )
    said = "TLS" if came[:1] in (b"\x15", b"\x16") else text[0].decode() if text else "bytes"
    return f"{said if came else 'nothing'}, {max(end for _, end in found)}"


if __name__ == "__main__":
    seconds, addresses = json.loads(sys.argv[1])
    sayings = [b"", b"GET / HTTP/1.0\r\n\r\n", client_hello()]
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    with ThreadPoolExecutor(len(addresses) or 1) as pool:
        print(json.dumps(list(pool.map(lambda at: _outcome(at, sayings, seconds), addresses))))
