"""The ledger of host memory, from figures that the system is made to give."""

import itertools
import random

import pytest

from tensorlens.frameworks.host import AllocatorFigures, balanced, host_ledger
from tensorlens.frameworks.host import ledger as host
from tensorlens.records import Ledger, Part
from tensorlens.tensors import unknown_figures
from tests.ledger_terms import check_ledger

RESIDENT = {"VmRSS": 10_000, "RssFile": 3_000, "RssShmem": 500}


@pytest.fixture(autouse=True)
def system(monkeypatch):
    monkeypatch.setattr(host, "_resident_sizes", lambda: RESIDENT)
    monkeypatch.setattr(host, "_machine", lambda: (20_000, 64_000))
    monkeypatch.setattr(host, "heap_now", lambda: (5_000, 700))


def handed(**figures):
    return AllocatorFigures(
        "an allocator", "exact bytes", **{"named": 900, "allocated": 1_000} | figures
    )


def parts(ledger):
    return {term.key: term.nbytes for term in ledger.parts}


def test_the_parts_of_what_is_cached_add_up():
    ledger = host_ledger(handed())
    # 5,000 of the heap are in use: 1,000 by tensors
    assert parts(ledger) == {
        "files": 3_000,
        "shared": 500,
        "heap": 4_000,
        "free": 700,
        "rest": 800,
    }
    assert sum(parts(ledger).values()) == ledger.cached == 9_000


def test_without_the_heaps_figure_the_parts_still_add_up(monkeypatch):
    monkeypatch.setattr(host, "heap_now", lambda: None)
    ledger = host_ledger(handed())
    assert parts(ledger) == {"files": 3_000, "shared": 500, "rest": 5_500}
    assert sum(parts(ledger).values()) == ledger.cached


def test_without_an_allocators_figure_there_are_no_parts():
    ledger = host_ledger(handed(allocated=None, reason="nothing counts"))
    assert ledger.parts == ()
    assert ledger.missing["cached"] == "nothing counts"


SIZES = (0, 1, 900, 5_000, 1 << 40)


@pytest.mark.parametrize("named", SIZES[1:])
def test_no_remainder_is_negative_on_any_device(named):
    for figures in itertools.product((None, *SIZES), repeat=4):
        names = ("allocated", "reserved", "driver_used", "driver_total")
        known = dict(zip(names, figures, strict=True))
        missing = {name: "not told" for name, nbytes in known.items() if nbytes is None}
        parts = (Part("other", "context", "context", (known["driver_used"] or 0) - 900, ""),)
        given = {"named": named, **known, "missing": missing, "parts": parts}
        check_ledger(balanced(Ledger("cuda:0", "an allocator", "exact bytes", **given)))


def test_no_term_is_negative_whatever_was_read(monkeypatch):
    every = [*itertools.product(SIZES, repeat=7)]
    for figures in random.Random(0).sample(every, 5_000):
        allocated, resident, heap, named, files, free, used = figures
        status = {"VmRSS": resident, "RssFile": files, "RssShmem": 1}
        monkeypatch.setattr(host, "_resident_sizes", lambda status=status: status)
        monkeypatch.setattr(host, "_machine", lambda used=used: (used, 1 << 41))
        monkeypatch.setattr(host, "heap_now", lambda heap=heap, free=free: (heap, free))
        check_ledger(host_ledger(handed(named=named, allocated=allocated)))


def test_memory_that_was_never_touched_is_not_taken_from_what_else_is_resident(monkeypatch):
    # 9,000 of the heap are in use, 1,000 of them by tensors, and 5,500 anonymous pages resident
    monkeypatch.setattr(host, "heap_now", lambda: (9_000, 700))
    ledger = host_ledger(handed())
    assert parts(ledger) == {"files": 3_000, "shared": 500, "rest": 5_500}
    (rest,) = (term for term in ledger.parts if term.key == "rest")
    assert rest.label == "heap and Python"
    assert "not touched yet" in rest.explanation


def test_tensors_larger_than_the_resident_set_leave_the_remainder_unknown(monkeypatch):
    ledger = host_ledger(handed(allocated=10_001))
    assert (ledger.reserved, ledger.cached, ledger.parts) == (10_000, None, ())
    assert unknown_figures({"": ledger})[0].startswith(
        "n/a: cached: more is allocated than is resident"
    )


def test_pages_of_files_are_in_use(monkeypatch):
    # a machine with nothing but this process and weights that it maps: 7,000 are not of files
    monkeypatch.setattr(host, "_machine", lambda: (7_000, 64_000))
    ledger = host_ledger(handed())
    assert (ledger.driver_used, ledger.reserved, ledger.other) == (10_000, 10_000, 0)
