"""Credentials of a run, and the handshake in which two processes prove that they know its key; pure.

The credentials are the run's id, its key, and the TLS certificate that its processes share. Programs of
different runs that know one *authkey* derive an id and a key from it, see
:meth:`Credentials.of_authkey`. An authkey may be guessable, so nothing that follows from it is shown
to anybody who has not proved it: each listener makes a certificate of its own, which a dialer is
shown by the listener, and the key is used in a key exchange alone.

::

    dialer                                listener
    HELLO     versions, ident,
              nonce_d, [share_d]      ->
                                      <-  CHALLENGE  nonce_l, [share_l],
                                                     HMAC("listener", hello, nonce_l)
    PROOF     HMAC("dialler", hello,
                   nonce_d, nonce_l)  ->
                                      <-  WELCOME    versions, ident   (or REFUSE, with the reason)

A challenge-response with HMAC (RFC 2104) and SHA-256, a direction label in each, and fresh 32-byte
nonces, so that nothing can be replayed or reflected. Bodies are JSON: nothing is unpickled before
both proofs are good, and versions are only compared after them.

A *context* says what the handshake is for, where that is not a link between two processes: it is in
the label of each HMAC, so that what was said for one purpose proves nothing for another, and both
sides can derive further keys from what they have said (:meth:`~DialerHandshake.derive`), as with the
exporters of TLS (RFC 8446, 7.5). Versions are not compared there: links inside a tunnel do that.

The HMACs' key is the run's. Credentials that come of an authkey, which may be guessable, are used
in a key exchange instead (``cpace``), whose shares go with the nonces and whose key is the HMACs':
an HMAC with the authkey itself would be a test for guesses. The exchange depends on the certificate
that the dialer has seen, so that somebody in between, with another one, ends with another key.
Before the proofs the two tell each other nothing that follows from an authkey.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._base import entry_points, values
from fiber._version import __version__
from fiber._wire import frames
from fiber.exceptions import HandshakeError

if TYPE_CHECKING:
    from fiber._wire.cpace import KeyExchange

#: bytes of a nonce, of a proof and of a share
_SIZE = 32
#: distribution whose version must agree, beside fiber's and Python's
PICKLER = "cloudpickle"


@values.frozen(kw_only=True)
class Credentials:
    """Secrets shared by the processes of one run. Not in ``repr``; never put in argv or logs."""

    #: id of the run, eight hexadecimal digits; sixteen where derived from an authkey
    run_id: str
    #: 32 bytes; knowledge of it is proved by HMAC before anything is unpickled
    key: bytes = values.field(repr=False)
    #: PEM certificate of the run, made with its first TLS listener; or of the listener alone
    certificate: str | None = values.field(default=None, repr=False)
    #: PEM private key of that certificate
    private_key: str | None = values.field(default=None, repr=False)
    #: True where listeners have certificates of their own, and the key is proved by a key exchange
    is_exchanged: bool = False

    @classmethod
    def new(cls) -> Credentials:
        """Make the credentials of a new run."""
        return cls(run_id=os.urandom(4).hex(), key=os.urandom(32))

    @classmethod
    def of_authkey(cls, authkey: bytes) -> Credentials:
        """Derive the credentials of an authkey: the same in every program that knows it.

        Its id stands in pickled addresses of objects, as ``name@url``.

        Raises:
            ValueError: the authkey is empty.
        """
        if not authkey:
            msg = "the authkey is empty; give both programs the same secret bytes"
            raise ValueError(msg)
        return _of_authkey(bytes(authkey))

    def with_certificate(self) -> Credentials:
        """Return these credentials with a certificate, made if there is none."""
        if self.certificate is not None:
            return self
        certificate, private_key = _self_signed()
        return values.evolve(self, certificate=certificate, private_key=private_key)

    def exchanged(self) -> Credentials:
        """Return the run's id and key, for listeners beside its endpoint.

        These cannot have the run's certificate, which not all of its processes know.
        """
        return values.evolve(self, certificate=None, private_key=None, is_exchanged=True)

    @property
    def public_id(self) -> str:
        """What a hello says of the credentials to one who has proved nothing."""
        return "" if self.is_exchanged else self.run_id

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for a job's private bootstrap data."""
        return {
            "run_id": self.run_id,
            "key": self.key.hex(),
            "certificate": self.certificate,
            "private_key": self.private_key,
            "is_exchanged": self.is_exchanged,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Credentials:
        """Read what :meth:`to_json` returned."""
        return cls(
            run_id=data["run_id"],
            key=bytes.fromhex(data["key"]),
            certificate=data["certificate"],
            private_key=data["private_key"],
            is_exchanged=data["is_exchanged"],
        )


@functools.lru_cache(maxsize=16)
def _of_authkey(authkey: bytes) -> Credentials:
    # scrypt, since the id is in pickles: a guess costs 16 MB and some hundredths of a second
    master = hashlib.scrypt(authkey, salt=b"fiber authkey 1", n=2**14, r=8, p=1, dklen=32)
    return Credentials(
        run_id=_expand(master, b"name")[:8].hex(),
        key=_expand(master, b"key"),
        is_exchanged=True,
    )


def _expand(master: bytes, label: bytes) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256, for its first block of 32 bytes."""
    return hmac.digest(master, b"fiber " + label + b"\x01", "sha256")


def _self_signed() -> tuple[str, str]:
    """An ECDSA P-256 certificate that is its own authority, CN ``fiber``, and its private key.

    mbed TLS, which nng uses, refuses Ed25519 keys and a name other than the one dialled with. Valid
    at all times that X.509 has, since it is known by its key and the clocks of hosts are off; the
    end is the one of RFC 5280, section 4.1.2.5, for none.
    """
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fiber")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc))
        .not_valid_after(dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


# -- what a process says of itself ---------------------------------------------------------------------


@values.frozen(kw_only=True)
class Hello:
    """Identity and versions of a process, as it states them in the handshake."""

    #: its identity within the run, given by the process that started it
    ident: str
    #: its process id on its host
    pid: int
    #: its host's name
    host: str
    #: version of fiber-core
    fiber: str
    #: major and minor version of Python
    python: str
    #: version of cloudpickle
    cloudpickle: str

    @classmethod
    def mine(cls, ident: str) -> Hello:
        """Make the hello of this process."""
        return cls(
            ident=ident,
            pid=os.getpid(),
            host=os.uname().nodename,
            fiber=__version__,
            python=f"{sys.version_info[0]}.{sys.version_info[1]}",
            cloudpickle=entry_points.version(PICKLER),
        )

    @classmethod
    def from_json(cls, data: Any) -> Hello:
        """Parse a peer's hello; raises HandshakeError where it is malformed."""
        try:
            return cls(
                ident=_text(data["ident"]),
                pid=int(data["pid"]),
                host=_text(data["host"]),
                fiber=_text(data["fiber"]),
                python=_text(data["python"]),
                cloudpickle=_text(data["cloudpickle"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            msg = "a peer's hello makes no sense"
            raise HandshakeError(msg) from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 255:
        raise ValueError(value)
    return value


def disagreement(mine: Hello, theirs: Hello) -> str | None:
    """Reason why two processes cannot work together, with the fix; None where they can."""
    first, second = f"{mine.host} (pid {mine.pid})", f"{theirs.host} (pid {theirs.pid})"
    for name, package, a, b in (
        ("fiber", "fiber-core", mine.fiber, theirs.fiber),
        ("cloudpickle", "cloudpickle", mine.cloudpickle, theirs.cloudpickle),
    ):
        if a.split(".")[:2] != b.split(".")[:2]:
            return (
                f"{name} is {a} on {first} and {b} on {second}; install the same one on both: "
                f"pip install '{package}=={a}'"
            )
    if mine.python != theirs.python:
        return (
            f"Python is {mine.python} on {first} and {theirs.python} on {second}; functions cannot "
            "be sent between them: use the same minor version on both"
        )
    return None


def mac(key: bytes, label: bytes, *parts: bytes) -> bytes:
    """HMAC with SHA-256 over a label and length-prefixed parts."""
    digest = hmac.new(key, label, "sha256")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _load(body: frames.Buffer) -> dict[str, Any]:
    try:
        data = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        msg = "a peer's handshake is not JSON"
        raise HandshakeError(msg) from error
    if not isinstance(data, dict):
        msg = "a peer's handshake is not a JSON object"
        raise HandshakeError(msg)
    return data


def _hex(data: dict[str, Any], key: str) -> bytes:
    try:
        value = bytes.fromhex(data[key])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"a peer's handshake lacks {key}"
        raise HandshakeError(msg) from error
    if len(value) != _SIZE:
        msg = f"a peer's {key} has {len(value)} bytes, expected {_SIZE}"
        raise HandshakeError(msg)
    return value


def _expect(frame: frames.Frame, *kinds: frames.Kind) -> None:
    if frame.kind not in kinds or len(frame.body) != frame.size:
        msg = f"a peer sent {frame.kind.name} where {kinds[0].name} was expected"
        raise HandshakeError(msg)


def _begun_exchange(credentials: Credentials, session: bytes) -> KeyExchange | None:
    """A key exchange, where the credentials are used in one."""
    if not credentials.is_exchanged:
        return None
    # needs cryptography, which a run on one host never loads
    from fiber._wire.cpace import KeyExchange

    seen = (credentials.certificate or "").encode()
    channel = hashlib.sha256(seen).digest()
    return KeyExchange(credentials.key, channel=channel, session=session)


def _exchanged(agree: Callable[[bytes], bytes], data: dict[str, Any]) -> bytes:
    """Key of an exchange with the share in a peer's frame."""
    try:
        return agree(_hex(data, "share"))
    except ValueError as error:
        msg = "a peer's share is no point of the curve"
        raise HandshakeError(msg) from error


class _Handshake:
    """State of both sides, and the HMACs of what they have said."""

    def __init__(self, key: bytes, mine: Hello, context: bytes) -> None:
        self._key = key
        self._mine = mine
        self._context = context
        # the dialer's first frame, and the nonces
        self._hello = b""
        self._nonces: tuple[bytes, ...] = ()
        #: the other process; None until it has proved that it is of this run
        self.peer: Hello | None = None

    def derive(self, label: bytes) -> bytes:
        """Key for some other use, 32 bytes; the same on both sides once the handshake is over."""
        assert self.peer is not None, "the handshake is not over"
        return self._mac(b"fiber derived " + label, *self._nonces)

    def _mac(self, label: bytes, *nonces: bytes) -> bytes:
        return mac(self._key, label + self._context, self._hello, *nonces)


class DialerHandshake(_Handshake):
    """Dialing side: send :meth:`hello`, then pass each frame to :meth:`receive` until it returns None.

    Args:
        credentials: of the run.
        hello: of this process.
        context: purpose, where it is another one than a link; the listener's must be equal.
    """

    def __init__(self, credentials: Credentials, hello: Hello, *, context: bytes = b"") -> None:
        super().__init__(credentials.key, hello, context)
        self._nonce = os.urandom(_SIZE)
        said = {**values.asdict(hello), "run": credentials.public_id, "nonce": self._nonce.hex()}
        self._exchange = _begun_exchange(credentials, self._nonce)
        if self._exchange is not None:
            said["share"] = self._exchange.share.hex()
        self._hello = json.dumps(said).encode()
        self._proven = False

    def hello(self) -> tuple[frames.Kind, bytes]:
        """Return the first frame to send."""
        return frames.Kind.HELLO, self._hello

    def receive(self, frame: frames.Frame) -> tuple[frames.Kind, bytes] | None:
        """Process one frame; returns the next to send, or None once :attr:`peer` is set.

        Raises:
            HandshakeError: the listener is of another run, refused us, or disagrees in versions.
        """
        if frame.kind is frames.Kind.REFUSE:
            # a reason is only trusted after the listener's proof
            reason = str(_load(frame.body).get("why", ""))[:500] if self._proven else ""
            error = HandshakeError(reason or "refused: the listener is not of this run")
            error.proven = self._proven
            raise error
        if not self._proven:
            _expect(frame, frames.Kind.CHALLENGE)
            data = _load(frame.body)
            nonce = _hex(data, "nonce")
            if self._exchange is not None:
                self._key = _exchanged(self._exchange.key_of_initiator, data)
            expected = self._mac(b"fiber listener", nonce)
            if not hmac.compare_digest(expected, _hex(data, "proof")):
                msg = "the listener could not prove that it is of this run"
                raise HandshakeError(msg)
            self._proven = True
            self._nonces = self._nonce, nonce
            proof = self._mac(b"fiber dialler", *self._nonces)
            return frames.Kind.PROOF, json.dumps({"proof": proof.hex()}).encode()
        _expect(frame, frames.Kind.WELCOME)
        self.peer = Hello.from_json(_load(frame.body))
        return None


class ListenerHandshake(_Handshake):
    """Listening side of one pipe: pass each frame to :meth:`receive` until :attr:`peer` is set.

    Args:
        credentials: of the run.
        mine: hello of this process.
        context: as for the dialer.
    """

    def __init__(self, credentials: Credentials, mine: Hello, *, context: bytes = b"") -> None:
        super().__init__(credentials.key, mine, context)
        self._credentials = credentials
        self._theirs: Hello | None = None
        #: ident of the dialer that was refused after its proof, and the reason
        self.refusal = "", ""

    def receive(self, frame: frames.Frame) -> tuple[frames.Kind, bytes]:
        """Process one frame; returns the answer. After a REFUSE the caller closes the pipe.

        Raises:
            HandshakeError: the dialer is no process of this run; close the pipe without an answer.
        """
        if self._theirs is None:
            _expect(frame, frames.Kind.HELLO)
            self._hello = bytes(frame.body)
            data = _load(self._hello)
            if data.get("run") != self._credentials.public_id:
                msg = "a process of another run dialled this one"
                raise HandshakeError(msg)
            nonces = self._nonces = _hex(data, "nonce"), os.urandom(_SIZE)
            self._theirs = Hello.from_json(data)
            answer = {"nonce": nonces[1].hex()}
            exchange = _begun_exchange(self._credentials, nonces[0])
            if exchange is not None:
                self._key = _exchanged(exchange.key_of_responder, data)
                answer["share"] = exchange.share.hex()
            answer["proof"] = self._mac(b"fiber listener", nonces[1]).hex()
            return frames.Kind.CHALLENGE, json.dumps(answer).encode()
        _expect(frame, frames.Kind.PROOF)
        expected = self._mac(b"fiber dialler", *self._nonces)
        if not hmac.compare_digest(expected, _hex(_load(frame.body), "proof")):
            msg = "a peer could not prove that it is of this run"
            raise HandshakeError(msg)
        why = None if self._context else disagreement(self._mine, self._theirs)
        if why is not None:
            self.refusal = self._theirs.ident, why
            return frames.Kind.REFUSE, json.dumps({"why": why}).encode()
        self.peer = self._theirs
        return frames.Kind.WELCOME, json.dumps(values.asdict(self._mine)).encode()
