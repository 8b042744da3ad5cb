"""Credentials: private, portable, and with a certificate that mbed TLS accepts."""

from __future__ import annotations

import datetime as dt
import json

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fiber.transport.identity import Credentials


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
