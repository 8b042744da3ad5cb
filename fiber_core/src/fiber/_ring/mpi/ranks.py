"""Ranks of an ``mpirun``: the hosts that they belong on, the barrier at which they wait, and the monitor of them all.

A shell around each rank reports to its member through one FIFO in the member's folder, and waits for a
line from another one. It also reports the exit code, whatever mpirun does with it.

:class:`RankMonitor` releases the ranks once all are where they belong, and ends mpirun after a failure:
a state machine without clock, thread or process, events and times in, instructions out. It ends mpirun
itself, for some implementations wait for ever for ranks that are gone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from fiber._base import values
from fiber._ring.model import MpiTiming
from fiber._ring.mpi.messages import RankEnded, RankUp
from fiber.exceptions import FiberError

#: environment variable of ranks with the folder of their member
FOLDER = "FIBER_MPI_DIR"
#: environment variable of ranks with the name of their member
MEMBER = "FIBER_MPI_MEMBER"
#: exit code of a rank that was not started on a member
STRAY = 125

_UP = "up"
_GO = "go"

#: ranks that one message lists
_MAX_NAMED = 8


@values.frozen
class MpiHost:
    """A member, as a host of ``mpirun``."""

    #: name of the member, without dots
    name: str
    #: most ranks on it
    slots: int = values.field(default=1, validator=values.ge(1))


def hostfile(
    hosts: Sequence[MpiHost], *, open_mpi: bool, addresses: Mapping[str, str] | None = None
) -> str:
    """Return a host file in Open MPI's syntax, or in that of Hydra (MPICH and Intel MPI).

    Args:
        hosts: hosts in the order of their ranks.
        open_mpi: True for Open MPI's syntax.
        addresses: addresses to write in place of names, by name.
    """
    form = "{} slots={}\n" if open_mpi else "{}:{}\n"
    names = addresses or {}
    return "".join(form.format(names.get(host.name, host.name), host.slots) for host in hosts)


def own_addresses(hosts: Sequence[MpiHost], addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each host that shares it with no other one, by name.

    Hydra resolves each name to find out whether it is its own host. No name server knows our names,
    and one that does not answer costs 10 s a host, so addresses are better. A member on the
    launcher's host must stay a name, or Hydra would start its ranks without our agent.

    Args:
        hosts: the members.
        addresses: addresses of the members and the launcher, by name.
    """
    taken = list(addresses.values())
    return {
        host.name: addresses[host.name]
        for host in hosts
        if host.name in addresses and taken.count(addresses[host.name]) == 1
    }


def discover_script(hosts: Sequence[MpiHost]) -> str:
    """Return a host discovery script for elastic launchers: prints ``host:slots`` lines."""
    lines = [f"echo {shlex.quote(f'{host.name}:{host.slots}')}" for host in hosts]
    return "\n".join(["#!/bin/sh", *lines, ""])


def expected_hosts(count: int, hosts: Sequence[MpiHost]) -> tuple[str, ...]:
    """Return the host of each rank where hosts are filled one after another.

    Args:
        count: number of ranks.
        hosts: hosts in the order of the host file.

    Raises:
        FiberError: there are fewer slots than ranks.
    """
    slots = [host.name for host in hosts for _ in range(host.slots)]
    if count > len(slots):
        msg = (
            f"{count} ranks need {count} slots, and {len(hosts)} members have {len(slots)}; ask for "
            "more with --members or --slots"
        )
        raise FiberError(msg)
    return tuple(slots[:count])


def mismatches(
    found: Mapping[int, str], count: int, hosts: Sequence[MpiHost], *, strict: bool = True
) -> list[str]:
    """Compare the hosts of ranks with the expected ones; returns a sentence for each difference.

    Args:
        found: host of each rank that has started.
        count: expected number of ranks.
        hosts: hosts in the order of the host file.
        strict: True where hosts are filled one after another; False where ranks may be on any host
            that has a free slot.
    """
    names = {host.name for host in hosts}
    wrong = []
    if missing := sorted(set(range(count)) - set(found)):
        wrong.append(f"{_ranks(missing)} never began on a member")
    if surplus := sorted(set(found) - set(range(count))):
        wrong.append(f"{_ranks(surplus)} not asked for")
    if strangers := sorted(rank for rank, host in found.items() if host not in names):
        where = ", ".join(sorted({found[rank] for rank in strangers}))
        wrong.append(f"{_ranks(strangers)} began on {where}, which is no member")
    if wrong:
        return wrong
    if strict:
        expected = expected_hosts(count, hosts)
        return [
            f"rank {rank} began on {found[rank]} and belongs on {host}"
            for rank, host in enumerate(expected)
            if found[rank] != host
        ][:_MAX_NAMED]
    full = {host.name: host.slots for host in hosts}
    for host in found.values():
        full[host] -= 1
    return [f"{name} has {-left} ranks too many" for name, left in full.items() if left < 0]


def _ranks(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:_MAX_NAMED]))
    more = f" and {len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else ""
    return f"rank {listed}" if len(numbers) == 1 else f"ranks {listed}{more}"


# for any POSIX shell, so that members need nothing installed; exits with the program's exit code,
# and is the program's parent, so that its end is reported whatever mpirun does
_SCRIPT = f"""
rank=${{OMPI_COMM_WORLD_RANK:-${{PMIX_RANK:-${{PMI_RANK:-}}}}}}
if [ -z "${FOLDER}" ]; then
    echo "fiber: rank $rank was started on $(hostname), which is no member of this run" >&2
    exit {STRAY}
fi
echo "up $rank $$" >"${FOLDER}/{_UP}" && read -r go <"${FOLDER}/{_GO}" || exit {STRAY}
"$@"
code=$?
echo "ended $rank $code" >"${FOLDER}/{_UP}"
exit $code
"""


def wrapped(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that ``mpirun`` starts on members for a program."""
    return ("/bin/sh", "-c", _SCRIPT, "fiber-rank", *argv)


class RankRegistry:
    """Registry of the ranks on a member: reports their start and end, and releases them.

    Args:
        folder: folder of the member, for the FIFOs.
        report: called with each report, on the registry's thread.
    """

    def __init__(self, folder: Path, report: Callable[[RankUp | RankEnded], None]) -> None:
        self._report = report
        for name in (_UP, _GO):
            os.mkfifo(folder / name, 0o600)
        # opened for reading and writing, so that they neither block nor end with their peers
        self._up = os.open(folder / _UP, os.O_RDWR)
        self._go = os.open(folder / _GO, os.O_RDWR)
        self._thread = threading.Thread(target=self._listen, name="fiber-ranks", daemon=True)
        self._thread.start()

    def release(self, count: int) -> None:
        """Release a number of ranks."""
        # a shell reads its line byte by byte, and leaves the others' lines
        os.write(self._go, b"\n" * count)

    def close(self) -> None:
        """Stop the registry's thread and close the FIFOs."""
        os.write(self._up, b"over\n")
        self._thread.join()
        os.close(self._up)
        os.close(self._go)

    def _listen(self) -> None:
        with open(self._up, "rb", closefd=False) as lines:
            for line in lines:
                words = line.split()
                if words == [b"over"]:
                    return
                with contextlib.suppress(ValueError, IndexError):
                    what, rank, number = words[0], int(words[1]), int(words[2])
                    self._report(RankUp(rank, number) if what == b"up" else RankEnded(rank, number))


@values.frozen
class Begin:
    """So many ranks of a host may begin."""

    host: str
    count: int


@values.frozen
class Send:
    """A signal for mpirun."""

    number: int


Instruction: TypeAlias = Begin | Send


@values.frozen
class Verdict:
    """How a run has ended."""

    #: what the command ends with
    code: int
    #: what went wrong, for people; empty where mpirun has said it all
    why: str = ""
    #: True where somebody asked it to end
    is_asked: bool = False


class RankMonitor:
    """One mpirun, from its start to its end.

    Args:
        count: ranks that were asked for; 0 where what is started is no mpirun, and starts its own.
        hosts: members, in the order of the hostfile.
        strict: True where members are to be filled one after another.
        start_timeout: seconds until all ranks must have come.
        now: the time at its start.
        timing: has the seconds that mpirun has to end by itself.
    """

    def __init__(
        self,
        count: int,
        hosts: Sequence[MpiHost],
        *,
        strict: bool = True,
        start_timeout: float,
        now: float,
        timing: MpiTiming,
    ) -> None:
        self._timing = timing
        self._count, self._hosts, self._strict = count, tuple(hosts), strict
        #: host by rank
        self.places: dict[int, str] = {}
        #: exit code by rank, as shells tell it
        self.codes: dict[int, int] = {}
        # a launcher that starts its ranks itself, if any, says nothing of them
        self._begun = count == 0
        self._deadline: float | None = None if self._begun else now + start_timeout
        self._start_timeout = start_timeout
        self._verdict: Verdict | None = None
        self._asked = 0

    @property
    def deadline(self) -> float | None:
        """When to call :meth:`tick` at the latest."""
        return self._deadline

    @property
    def is_given_up(self) -> bool:
        """True once it did not even end for SIGKILL."""
        return self._asked > 1 and self._deadline is None

    def rank_up(self, rank: int, host: str, now: float) -> list[Instruction]:
        """A rank waits on a host to begin."""
        self.places[rank] = host
        if self._begun or self._verdict is not None or len(self.places) < self._count:
            return []
        wrong = mismatches(self.places, self._count, self._hosts, strict=self._strict)
        if wrong:
            return self._fail(Verdict(1, _misplaced(wrong)), now)
        self._begun, self._deadline = True, None
        counts = Counter(self.places.values())
        return [Begin(name, number) for name, number in counts.items()]

    def rank_ended(self, rank: int, code: int, now: float) -> list[Instruction]:
        """A rank's program has ended."""
        self.codes[rank] = code
        if self._verdict is not None:
            return []
        if code:
            why = f"rank {rank} on {self.places.get(rank, 'a member')} {ended_how(code)}"
            self._verdict = Verdict(code, why)
            self._deadline = now + self._timing.after_failure
        elif len(self.codes) == self._count > 0:
            self._deadline = now + self._timing.after_all
        return []

    def failed(self, why: str, now: float) -> list[Instruction]:
        """The gang has failed: a member is no more, or its time is over."""
        return self._fail(Verdict(1, why), now)

    def interrupted(self, number: int, now: float) -> list[Instruction]:
        """Somebody wants it to end; twice wants it to end now."""
        if self._asked:
            self._asked = 2
            self._deadline = now + self._timing.after_signal
            return [Send(signal.SIGKILL)]
        self._verdict = Verdict(128 + number, is_asked=True)
        return self._end(now)

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed; what to do if the deadline has."""
        if self._deadline is None or now < self._deadline:
            return []
        if self._asked == 0:
            if not self._begun and self._verdict is None:
                self._verdict = Verdict(1, self._not_begun())
            elif self._verdict is None:
                self._verdict = Verdict(0)
            return self._end(now)
        if self._asked == 1:
            self._asked = 2
            self._deadline = now + self._timing.after_signal
            return [Send(signal.SIGKILL)]
        self._deadline = None
        return []

    def ended(self, code: int) -> Verdict:
        """The end of mpirun: with an exit code, or minus a signal."""
        killed = code < 0
        code = 128 - code if killed else code
        verdict = self._verdict
        if verdict is not None:
            # a rank that was killed may have been so for another one's failure, of which only
            # mpirun knows
            knows = verdict.code > 128 and 0 < code < 128 and not self._asked
            return values.evolve(verdict, code=code if knows else verdict.code)
        if not self._begun and code in (0, STRAY):
            # it has not failed by its own lights, and did not do what it was asked
            wrong = mismatches(self.places, self._count, self._hosts, strict=self._strict)
            return Verdict(code or 1, _misplaced(wrong))
        return Verdict(code, f"mpirun {ended_how(code)}" if killed else "")

    def _fail(self, verdict: Verdict, now: float) -> list[Instruction]:
        if self._asked:
            return []
        # what failed first has failed
        self._verdict = self._verdict or verdict
        return self._end(now)

    def _end(self, now: float) -> list[Instruction]:
        self._asked = 1
        self._deadline = now + self._timing.after_signal
        return [Send(signal.SIGTERM)]

    def _not_begun(self) -> str:
        wrong: Iterable[str] = mismatches(
            self.places, self._count, self._hosts, strict=self._strict
        )
        told = "; ".join(wrong)
        return f"not all ranks began within {self._start_timeout:g} s: {told}"


def ended_how(code: int) -> str:
    """How a program ended, from its code as shells give it."""
    if code > 128:
        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"ended with {code}"
    return f"ended with {code}"


def _misplaced(wrong: Iterable[str]) -> str:
    return (
        f"mpirun did not do as it was told: {'; '.join(wrong)}; it has settings of its own that "
        "override ours, or is of a version that has others"
    )
