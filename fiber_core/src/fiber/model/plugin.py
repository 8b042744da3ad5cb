"""What hooks return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber.model.job import Capabilities

if TYPE_CHECKING:
    from fiber.abc import Backend, ResourceProvider


@values.frozen(kw_only=True)
class BackendContext:
    """What a backend is given when it is loaded."""

    #: the backend's own settings: an instance of its ``BackendInfo.config`` class, or None
    config: Any = None
    #: installed resource providers by kind
    providers: Mapping[str, ResourceProvider] = values.field(factory=dict)
    #: the run that this process belongs to; None for commands that only look
    run_id: str | None = None
    #: folder of the run on this host, 0700, made by the core; None for commands that only look
    run_directory: str | None = None
    #: seconds of silence after which a supervisor or job is given up; None: the backend's own
    lease: float | None = None
    #: image that was set for jobs, in which a check may look around; None: the backend's own
    image: str | None = None


@values.frozen(kw_only=True)
class BackendInfo:
    """A backend as its plugin announces it; making this value imports no SDK."""

    #: canonical name, as in ``FIBER_BACKEND``
    name: str
    #: other accepted names
    aliases: tuple[str, ...] = ()
    #: version of the backend API it was written for, see ``fiber.abc.API_VERSION``
    api: tuple[int, int] = (1, 0)
    #: one line for ``fiber plugins``
    summary: str = ""
    #: what a job is called on this platform, for people
    noun: str = "job"
    #: True for the backend that is used where none was chosen or detected
    default: bool = False
    #: what works on it
    capabilities: Capabilities = values.field(factory=Capabilities)
    #: attrs class of its own settings; keys are read from ``FIBER_<NAME>_<KEY>`` and
    #: ``[<name>]`` of the configuration file. A field's metadata may have ``option`` and ``help``,
    #: which make it an option of commands (of those in ``commands``, if that is there), and
    #: ``passed_on=False``, which keeps it from the environment of jobs
    config: type | None = None
    #: seconds of silence after which a job is given up, unless the setting says otherwise
    lease: float = 3.0
    #: True where a connection between a job and its submitter ends when either does, as on one
    #: machine or one engine: a job whose connection is there does not end for silence alone
    near: bool = False
    #: finds out what ``fiber_listen_address`` has to know of the platform, from this backend's
    #: settings and the environment; it may ask the platform, and the hook gets its answer as
    #: ``Peers.facts``. Called in the process that begins a run, before it listens
    facts: Callable[[Any, Mapping[str, str]], Any] | None = values.field(default=None, repr=False)
    #: makes the backend; imports the SDK
    load: Callable[[BackendContext], Backend] = values.field(repr=False)


@values.frozen
class BackendClaim:
    """A plugin's word that this process runs on its platform."""

    #: canonical name of the backend
    name: str
    #: what was seen, for the error when two claim
    evidence: str
