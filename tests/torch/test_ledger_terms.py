"""The host's ledger of a program whose memory is not all resident."""

import numpy as np
import psutil
import torch

import tensorlens
from tests.ledger_terms import check_ledger


def resident():
    return psutil.Process().memory_info().rss


def test_a_tensor_that_was_never_touched_makes_no_term_negative():
    untouched = torch.empty(2 * resident(), dtype=torch.uint8)
    snapshot = tensorlens.MemReporter().snapshot()
    ledger = snapshot.ledger["cpu"]
    check_ledger(ledger)
    if ledger.allocated is not None:
        assert ledger.allocated >= untouched.nbytes > ledger.reserved
        assert ledger.cached is None
        # the text goes on in the next line
        assert "some of it was never touched" in " ".join(str(snapshot).split())


def test_an_array_that_was_never_touched_makes_no_term_negative():
    untouched = np.empty(2 * resident(), np.uint8)
    ledger = tensorlens.MemReporter().snapshot().ledger["cpu"]
    check_ledger(ledger)
    keys = [term.key for term in ledger.parts if term.of == "cached" and term.nbytes is not None]
    assert "heap" not in keys or ledger.reserved > untouched.nbytes
