"""Free memory that a process keeps for what it receives."""

import os
import platform
import resource
import subprocess
import sys

import pytest

from fiber._base import cgroups, interpreter

IN_MEMORY = """
from fiber._objects.handle import decode
from fiber._objects.pipe.packets import PacketSocket

first, second = PacketSocket.pair(print)
item = pickle.dumps(b"." * 2**20)
# maps the memory
for _ in range(2):
    first.put(item)
    decode(second.take())

def receive():
    first.put(item)
    return decode(second.take())
"""

ON_A_STREAM = """
from fiber._wire.frames import LENGTH, MAX_FRAME, Deframer

begin, deframer = LENGTH.pack(2**20) + bytes(9), Deframer(MAX_FRAME)

def receive():
    deframer.feed(begin)
    return deframer.fill(len(deframer.gap))
"""

#: prints page faults of three times 32 items of 1 MB
RECEIVING = """
import pickle, resource
{}
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    found = []
    for _ in range(32):
        found.append(receive())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    del found
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such parameters")
@pytest.mark.parametrize("receiver", [IN_MEMORY, ON_A_STREAM])
@pytest.mark.parametrize("said", [None, "131072"])
def test_what_arrives_gets_pages_again_that_are_free_unless_the_user_has_said_how_many(
    receiver, said
):
    environment = {n: v for n, v in os.environ.items() if "MALLOC" not in n}
    if said is not None:
        environment["MALLOC_TRIM_THRESHOLD_"] = said
    program = RECEIVING.format(receiver)
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment)
    first, *later = map(int, printed.split())
    pages = 32 * 2**20 // resource.getpagesize()
    if said is None:
        assert max(later) < pages / 2
    else:
        assert min(first, *later) > pages / 2


#: prints bytes that a process has kept of half as much more than it keeps, and by how many addresses it grew for a little
KEEPING = """
import resource, sys
from fiber._base.interpreter import keep_free_memory, most_kept, resident

def addresses():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, resource.RLIM_INFINITY))
keep_free_memory()
before, sized = resident(), addresses()
found = [b"." * 2**20]
grown = addresses() - sized
found += [b"." * 2**20 for _ in range(3 * most_kept() // 2**21)]
del found
print(resident() - before, grown, most_kept())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such parameters")
@pytest.mark.skipif(not interpreter._may_reserve(), reason="addresses are limited")
@pytest.mark.parametrize("limited", [False, True])
def test_of_more_than_is_kept_the_rest_alone_is_given_back_where_addresses_cost_nothing(limited):
    environment = {n: v for n, v in os.environ.items() if "MALLOC" not in n}
    command = [sys.executable, "-c", KEEPING, *["limited"] * limited]
    printed = subprocess.check_output(command, env=environment)
    kept, grown, most = map(int, printed.split())
    assert kept < 1.2 * most
    if limited:
        assert grown < most / 2
    else:
        assert kept > 0.8 * most


@pytest.mark.parametrize("total, most", [(2**10, 64), (6 * 2**10, 96), (2**20, 256)])
def test_more_is_kept_where_there_is_much_memory(monkeypatch, total, most):
    monkeypatch.setattr(cgroups, "memory_total", lambda: total)
    interpreter.most_kept.cache_clear()
    assert interpreter.most_kept() == most * 2**20
    interpreter.most_kept.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="files of a process are counted there")
def test_a_process_without_a_descriptor_to_import_by_keeps_less_and_goes_on():
    program = """
import os, resource
from fiber._base.interpreter import LEAST_KEPT, keep_free_memory, most_kept

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
keep_free_memory()
assert most_kept() == LEAST_KEPT
print("goes on")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout == "goes on\n", done.stderr
