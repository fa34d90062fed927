"""What ``gc.freeze()`` hides; it and its undoing are for the whole process."""

import gc

import pytest
import torch
from census_checks import Since
from census_models import Mlp

import tensorlens
from tensorlens import find_leaks

KEPT = []


@pytest.fixture
def freeze():
    yield gc.freeze
    gc.unfreeze()


def test_leaks_are_found(freeze):
    kept = []
    freeze()
    report = find_leaks(lambda: kept.append(torch.zeros(4)))
    assert [leak.bytes_per_step for leak in report.leaks] == [16]


def test_frozen_holder_is_noted(freeze):
    freeze()
    report = find_leaks(lambda: KEPT.append(torch.zeros(4)))
    assert [leak.bytes_per_step for leak in report.leaks] == [16]
    assert ["KEPT" in leak.path for leak in report.leaks] == [False]
    (note,) = (note for note in report.notes if "gc.freeze()" in note)
    assert note.startswith("gc.freeze() hides ") and "gc.unfreeze()" in note


def test_a_report_with_the_collector_off_and_frozen(freeze):
    model = Mlp()
    since = Since()
    gc.disable()
    try:
        assert since(model) == {}
        assert not gc.isenabled()
        freeze()
        seen = tensorlens.MemReporter(model).snapshot()
    finally:
        gc.enable()
    assert "fc1.weight" in names(since.last) & names(seen)
    assert any(note.startswith("gc.freeze() hides ") for note in seen.notes)


def names(snapshot):
    return {each.name for each in snapshot.tensors}
