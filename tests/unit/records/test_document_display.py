"""What notebooks show of records: their text, whatever else their classes define."""

import pytest

from tensorlens import Estimate, LineReport, Recording, Snapshot
from tensorlens.records import Document


@pytest.mark.parametrize("kind", [LineReport, Snapshot, Recording, Estimate])
def test_ipython_finds_the_text_before_a_repr(kind):
    assert issubclass(kind, Document)
    assert callable(kind.__dict__["_repr_pretty_"])
