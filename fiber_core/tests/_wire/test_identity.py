"""Certificates of runs and jobs."""

from datetime import datetime, timezone

import pytest
from cryptography import x509

from fiber._wire.identity import Credentials


@pytest.mark.parametrize("year", [1970, 2000, 2100, 9999])
def test_a_certificate_is_valid_whatever_the_time_is_on_a_host(year):
    certificate = x509.load_pem_x509_certificate(
        Credentials.new().with_certificate().certificate.encode()
    )

    now = datetime(year, 6, 1, tzinfo=timezone.utc)
    assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc
