"""The forms that names, labels and variables must have, and what is said of those that have not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .refusals import Cause

__all__ = ["dns_label_problems", "label_problems", "name_problems", "variable_problems"]

_LABEL_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL_PART}(\.{_LABEL_PART})*")
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    rf"for validation is '{_LABEL_PART}(\.{_LABEL_PART})*')"
)
_DNS_LABEL = re.compile(_LABEL_PART)
_DNS_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    f"for validation is '{_LABEL_PART}')"
)
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_KEY_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VARIABLE_TEXT = (
    "a valid environment variable name must consist only of printable ASCII characters other than "
    "'='"
)


def name_problems(name: str) -> Iterator[str]:
    """What is wrong with an object's name."""
    if len(name) > 253:
        yield "must be no more than 253 characters"
    if not _SUBDOMAIN.fullmatch(name):
        yield _SUBDOMAIN_TEXT


def dns_label_problems(name: str) -> Iterator[str]:
    """What is wrong with the name of a part of an object, or with a host name."""
    if len(name) > 63:
        yield "must be no more than 63 characters"
    if not _DNS_LABEL.fullmatch(name):
        yield _DNS_LABEL_TEXT


def label_problems(labels: Mapping[str, str], field: str) -> Iterator[Cause]:
    """What is wrong with labels."""
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if slash and not _SUBDOMAIN.fullmatch(prefix):
            yield Cause.invalid(field, key, f"prefix part {_SUBDOMAIN_TEXT}")
        if not name:
            yield Cause.invalid(field, key, "name part must be non-empty")
        if len(name) > 63:
            yield Cause.invalid(field, key, "name part must be no more than 63 bytes")
        if not _KEY.fullmatch(name):
            yield Cause.invalid(field, key, f"name part {_KEY_TEXT}")
        if len(value) > 63:
            yield Cause.invalid(field, value, "must be no more than 63 bytes")
        if not _VALUE.fullmatch(value):
            yield Cause.invalid(field, value, _VALUE_TEXT)


def variable_problems(name: str) -> Iterator[str]:
    """What is wrong with the name of an environment variable."""
    if not name or "=" in name or not all(" " <= letter <= "~" for letter in name):
        yield _VARIABLE_TEXT
