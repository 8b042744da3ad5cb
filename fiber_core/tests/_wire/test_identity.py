"""Credentials: private, portable, and with a certificate that mbed TLS accepts."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fiber._wire.identity import Credentials


def test_every_run_has_its_own_secrets():
    runs = [Credentials.new() for _ in range(20)]
    assert len({run.run_id for run in runs}) == 20
    assert len({run.key for run in runs}) == 20
    assert all(len(run.key) == 32 and len(run.run_id) == 8 for run in runs)


def test_no_secret_is_shown():
    run = Credentials.new().with_certificate()
    shown = f"{run} {run!r}"
    assert run.run_id in shown
    for secret in (run.key.hex(), repr(run.key), run.private_key, run.certificate):
        assert secret not in shown


def test_credentials_travel_as_json():
    for run in (Credentials.new(), Credentials.new().with_certificate()):
        assert Credentials.from_json(json.loads(json.dumps(run.to_json()))) == run


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


def test_two_runs_share_no_certificate():
    first, second = (Credentials.new().with_certificate() for _ in range(2))
    assert first.private_key != second.private_key
    assert first.certificate != second.certificate


class TestAuthkeys:
    """Programs that share an authkey derive the same from it, and show nothing of it."""

    def test_the_same_key_is_derived_by_every_process(self):
        first, second = (Credentials.of_authkey(b"secret") for _ in range(2))
        assert (first.run_id, first.key, first.seed) == (second.run_id, second.key, second.seed)
        assert Credentials.of_authkey(b"Secret").key != first.key
        assert Credentials.of_authkey(b"Secret").run_id != first.run_id

    def test_it_is_what_it_was_so_that_programs_of_different_versions_meet(self):
        derived = Credentials.of_authkey(b"secret")
        assert derived.run_id == "192286ccb33848c6"
        assert (
            derived.key.hex() == "d66d1ac9e16cbbeed3fc54295eb91a645aafdae98dbee3935370c0c6d5d7263a"
        )

    def test_each_makes_a_certificate_of_its_own_with_the_same_key(self):
        first = Credentials.of_authkey(b"secret").with_certificate()
        second = Credentials.of_authkey(b"secret").with_certificate()
        assert first.private_key == second.private_key
        assert first.certificate != second.certificate

    def test_processes_of_a_run_derive_the_same_certificate_key_from_the_runs(self):
        run = Credentials.new()
        first, second = run.derived(), run.with_certificate().derived()
        assert first == second
        assert (first.run_id, first.key) == (run.run_id, run.key)
        assert first.with_certificate().private_key == second.with_certificate().private_key

    def test_nothing_of_it_is_shown_and_it_travels_as_json(self):
        derived = Credentials.of_authkey(b"secret").with_certificate()
        shown = repr(derived)
        for secret in (derived.key, derived.seed):
            assert repr(secret) not in shown
            assert secret.hex() not in shown
        assert Credentials.from_json(json.loads(json.dumps(derived.to_json()))) == derived

    def test_an_empty_one_is_no_secret(self):
        with pytest.raises(ValueError, match="the authkey is empty"):
            Credentials.of_authkey(b"")
