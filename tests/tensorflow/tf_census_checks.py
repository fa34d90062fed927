"""What is new in a census since another, held against the tapped allocator's own count."""

import gc

from tensorlens.frameworks import CensusRoot
from tensorlens.frameworks.tensorflow import cpu, findings


def census(*roots, **named):
    """Take a census; what it says is allocated is what the allocator counts before and after."""
    allocator = cpu.install()
    findings.adopt_all(allocator)
    before = allocator.allocated()
    found = findings.census(
        [*map(CensusRoot, roots), *(CensusRoot(item, name) for name, item in named.items())]
    )
    assert allocator.allocated() == before
    ledger = found.ledger["cpu"]
    assert ledger.allocated == before
    assert ledger.named + ledger.unnamed == ledger.allocated
    assert all(each.name for each in found.tensors)
    return found


class Since:
    """The tensors that are there now and were not when this was made."""

    def __init__(self):
        gc.collect()
        self.before = census()
        # TensorFlow keeps numbers that it has seen: what is new may share an old buffer
        self._old = {(each.storage, each.name) for each in self.before.tensors}

    def records(self, *roots, **named):
        self.last = census(*roots, **named)
        return [
            each
            for each in self.last.tensors
            if (each.storage, each.name) not in self._old and not each.name.endswith(".handle")
        ]

    def __call__(self, *roots, **named):
        """Return the new rows by name, which must differ; the handles of variables left out."""
        records = self.records(*roots, **named)
        assert len({each.name for each in records}) == len(records), records
        return {each.name: each for each in records}

    def sizes(self, *roots, **named):
        """Return role and bytes by name."""
        return {name: (each.role, each.nbytes) for name, each in self(*roots, **named).items()}

    def grown(self, figure):
        """Return by how much a figure of the ledger has grown."""
        return getattr(self.last.ledger["cpu"], figure) - getattr(self.before.ledger["cpu"], figure)
