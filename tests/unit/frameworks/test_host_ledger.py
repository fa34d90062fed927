"""The ledger of host memory, from figures that the system is made to give."""

import pytest

import tensorlens.frameworks.host_ledger as hosts
from tensorlens.frameworks.host_ledger import Handed, host_ledger
from tensorlens.render.balance import unknown

RESIDENT = {"VmRSS": 10_000, "RssFile": 3_000, "RssShmem": 500}


@pytest.fixture(autouse=True)
def system(monkeypatch):
    monkeypatch.setattr(hosts, "_resident", lambda: RESIDENT)
    monkeypatch.setattr(hosts, "_machine", lambda: (20_000, 64_000))
    monkeypatch.setattr(hosts, "heap_now", lambda: (5_000, 700))


def handed(**figures):
    return Handed("an allocator", "exact bytes", **{"named": 900, "allocated": 1_000} | figures)


def parts(ledger):
    return {term.key: term.nbytes for term in ledger.parts}


def test_what_kernels_keep_is_a_part_of_its_own_and_not_of_the_other_heap():
    ledger = host_ledger(handed(kernels=1_500))
    # 5,000 of the heap are in use: 1,000 by tensors, 1,500 by kernels
    assert parts(ledger) == {
        "files": 3_000,
        "shared": 500,
        "kernels": 1_500,
        "heap": 2_500,
        "free": 700,
        "rest": 800,
    }
    assert sum(parts(ledger).values()) == ledger.cached == 9_000
    assert "kernels" not in ledger.missing


def test_where_nothing_counts_them_the_reason_is_told_and_they_stay_in_the_other_heap():
    ledger = host_ledger(handed(kernels_reason="no MKL here"))
    assert parts(ledger)["kernels"] is None
    assert parts(ledger)["heap"] == 4_000
    assert sum(nbytes or 0 for nbytes in parts(ledger).values()) == ledger.cached
    (term,) = (term for term in ledger.parts if term.key == "kernels")
    assert "no MKL here" in term.explanation
    assert unknown({"": ledger}) == ("n/a: in-kernel caches: no MKL here",)


def test_without_the_heaps_figure_the_parts_still_add_up(monkeypatch):
    monkeypatch.setattr(hosts, "heap_now", lambda: None)
    ledger = host_ledger(handed(kernels=1_500))
    assert parts(ledger) == {"files": 3_000, "shared": 500, "kernels": 1_500, "rest": 4_000}
    assert sum(parts(ledger).values()) == ledger.cached


def test_without_an_allocators_figure_there_are_no_parts():
    ledger = host_ledger(handed(allocated=None, reason="nothing counts", kernels=1_500))
    assert ledger.parts == ()
    assert ledger.missing["cached"] == "nothing counts"
    assert "kernels" not in ledger.missing
