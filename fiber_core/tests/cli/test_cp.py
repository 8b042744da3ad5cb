"""Copies go to backends that have volumes."""

import attrs

from fiber.testing import FakeBackend, fakes


def test_source_and_target_are_passed_on(fiber, monkeypatch):
    told = []
    declared = attrs.evolve(fakes.CAPABILITIES, copy=True)
    monkeypatch.setattr(fakes, "CAPABILITIES", declared)
    monkeypatch.setattr(FakeBackend, "copy", lambda _, src, dst: told.append((src, dst)))

    assert fiber.lines("cp", "a b", "data:c") == []
    assert told == [("a b", "data:c")]


def test_it_is_refused_where_there_are_no_volumes(fiber):
    assert "is not supported by fake (capability 'copy')" in fiber.fails("cp", "a", "data:b")
