"""What tests of the recorder share: lines by their comment, and what a log says event by event."""

from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from tensorlens.frameworks.torch import Adapter, TorchAllocator
from tensorlens.records import ALLOC, FREE, START


def counting_allocator():
    """The native allocator, or a skip where there is none."""
    counter = Adapter().cpu_counter()
    if not isinstance(counter, TorchAllocator):
        pytest.skip("; ".join(Adapter().notes()))
    return counter


class Lines:
    """Numbers of a file's lines, by the comment that they end in."""

    def __init__(self, file):
        self._lines = Path(file).read_text().splitlines()

    def __call__(self, text):
        (found,) = [
            number for number, line in enumerate(self._lines, 1) if line.endswith("# " + text)
        ]
        return found


def levels(log):
    """Bytes handed out after each row, added up from the rows alone."""
    signs = {START: 1, ALLOC: 1, FREE: -1}
    changes = (signs.get(kind, 0) * size for kind, size in zip(log.kind, log.size, strict=True))
    return list(accumulate(changes))


def level_at(log, mark):
    """Bytes handed out when a mark was set."""
    (row,) = [each.row for each in log.marks if each.name == mark]
    return levels(log)[row - 1] if row else 0


def allocations(recording, phase=None):
    """What was handed out, in order; of one phase, or all."""
    log = recording.log
    rows = [row for row, kind in enumerate(log.kind) if kind == ALLOC]
    blocks = recording.blocks(rows)
    return [block for block in blocks if phase is None or block.phase == phase]


def charges(recording, phase, least=0):
    """Line number to the sizes charged to it, of at least so many bytes, sorted."""
    found = {}
    for block in allocations(recording, phase):
        if block.nbytes >= least:
            found.setdefault(block.charged.lineno, []).append(block.nbytes)
    return {line: sorted(sizes) for line, sizes in found.items()}


def files(recording, phase):
    """The files that anything is charged to."""
    return Counter(block.charged.filename for block in allocations(recording, phase))
