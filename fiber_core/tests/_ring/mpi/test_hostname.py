"""A host name of a thread's own, which no other process sees."""

import socket
import subprocess
import threading

from fiber._ring.mpi.streams import set_hostname


def test_a_thread_and_its_programs_have_the_name_or_nothing_has_changed():
    before = socket.gethostname()
    found = []

    def look():
        found.append(set_hostname("member-7"))
        found.append(subprocess.check_output(["uname", "-n"], text=True).strip())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert found == ([True, "member-7"] if found[0] else [False, before])
    assert socket.gethostname() == before
