"""What notebooks show of records: their text, whatever else their classes define."""

import pytest

from tensorlens.lines.report import LineReport
from tensorlens.planning.estimate.result import Estimate
from tensorlens.recording.recordings import Recording
from tensorlens.records.documents import Document
from tensorlens.tensors.snapshot import Snapshot


@pytest.mark.parametrize("kind", [LineReport, Snapshot, Recording, Estimate])
def test_ipython_finds_the_text_before_a_repr(kind):
    assert issubclass(kind, Document)
    assert callable(kind.__dict__["_repr_pretty_"])
