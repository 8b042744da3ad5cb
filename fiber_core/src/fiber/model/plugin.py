"""Values that plugins' hooks take and return: backends, claims of processes, and addresses to listen at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber.exceptions import FiberError, PluginError
from fiber.model.job import Capabilities
from fiber.model.timing import Timing

if TYPE_CHECKING:
    from fiber.abc import Backend, ResourceProvider


@values.frozen(kw_only=True)
class BackendContext:
    """Context passed to ``BackendInfo.load`` when a backend is made."""

    #: the backend's own settings: an instance of its ``BackendInfo.config`` class, or None
    config: Any = None
    #: installed resource providers by kind
    providers: Mapping[str, ResourceProvider] = values.field(factory=dict)
    #: the run that this process belongs to; None for commands that only inspect
    run_id: str | None = None
    #: folder of the run on this host, 0700, made by the core; None for commands that only inspect
    run_directory: str | None = None
    #: seconds of silence after which a supervisor or job is given up; None: the backend's own
    lease: float | None = None
    #: durations of the run; a backend's own are a subclass of ``Durations`` at the same scale
    timing: Timing = values.field(factory=Timing)
    #: image set for jobs, which a check may inspect; None: the backend's own
    image: str | None = None


@values.frozen(kw_only=True)
class BackendInfo:
    """Description of a backend by its plugin; making this value must not import an SDK."""

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
    #: its features, wherever it is used
    capabilities: Capabilities = values.field(factory=Capabilities)
    #: called with this backend's settings once it was chosen; returns its features there, where they
    #: depend on the site. Must be a pure function of the settings, and import no SDK: a site that
    #: enforces CPUs says so by a setting, say
    capabilities_for: Callable[[Any], Capabilities] | None = values.field(default=None, repr=False)
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
    #: called with this backend's settings and the environment in the process that begins a run,
    #: before it listens; may query the platform. Its result is ``Peers.facts`` for the hook
    #: ``fiber_listen_address``
    facts: Callable[[Any, Mapping[str, str]], Any] | None = values.field(default=None, repr=False)
    #: ``module:name`` of what ``fiber plugin check`` calls with the backend for a
    #: :class:`fiber.testing.Witness`; imported for that command only, so it may need pytest. None:
    #: a :class:`fiber.testing.HostWitness` where jobs run on the submitter's host, else nobody
    witness: str | None = None
    #: what makes the backend of its context, and imports the SDK: ``module:name`` of the class, or
    #: a function
    load: str | Callable[[BackendContext], Backend] = values.field(repr=False)

    def with_settings(self, settings: Any) -> BackendInfo:
        """Copy with the capabilities that the backend has with these settings.

        Args:
            settings: an instance of :attr:`config`, or None where it has none.

        Raises:
            PluginError: the plugin's function raised, or returned something else.
        """
        if self.capabilities_for is None:
            return self
        try:
            found: object = self.capabilities_for(settings)
        except FiberError:
            raise
        except Exception as error:
            msg = (
                f"capabilities_for of backend {self.name!r} raised {type(error).__name__}: {error}"
            )
            raise PluginError(msg, plugin=self.name) from error
        if not isinstance(found, Capabilities):
            msg = f"capabilities_for of backend {self.name!r} returned {found!r}, no Capabilities"
            raise PluginError(msg, plugin=self.name)
        return values.evolve(self, capabilities=found)


@values.frozen
class BackendClaim:
    """Claim of a plugin that this process runs on its platform."""

    #: canonical name of the backend
    name: str
    #: the evidence, for the error where two plugins claim
    evidence: str


@values.frozen(kw_only=True)
class Interface:
    """Network interface of this host with one of its addresses."""

    #: the system's name, for example "eth0"
    name: str
    #: numeric IPv4 or IPv6 address
    address: str
    #: True for addresses that never leave the host
    is_loopback: bool = False
    #: True where the interface is up
    is_up: bool = True


@values.frozen(kw_only=True)
class Peers:
    """Description of the processes that will dial a listener that is about to be made."""

    #: True where every peer runs on this host and sees its file system
    same_host: bool
    #: the run directory, where sockets of this host live; socket paths stay below 100 bytes
    directory: str
    #: a name unique within the run, usable as a file name
    name: str
    #: settings of the selected backend, its own attrs value
    config: Any = None
    #: the environment of this process
    environ: Mapping[str, str] = values.field(factory=dict)
    #: facts about the platform, as returned by ``BackendInfo.facts``
    facts: Any = None


@values.frozen(kw_only=True)
class ListenAddress:
    """Address to bind, and how peers reach it."""

    #: ``unix://PATH`` (Linux) or ``ipc://PATH`` on one host, ``tls+tcp://HOST:0`` or (explicitly
    #: unsafe) ``tcp://HOST:0`` between hosts
    bind_url: str
    #: host that peers dial, where it differs from the bound one (``tls+tcp`` and ``tcp`` only)
    advertise_host: str | None = None
    #: True where jobs that cannot dial it come over streams that the backend opens into them
    #: (:meth:`fiber.abc.Backend.open_stream`); bound to loopback it can be dialled by none
    routed: bool = False
