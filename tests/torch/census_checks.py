"""A snapshot held against the allocator's own count, and what is new in it since another."""

import gc

import tensorlens
from tensorlens.frameworks.torch import native


def balanced(snapshot, unnamed=0):
    """Assert that the sums over the rows, the ledger and the allocator's count are one."""
    ledger = snapshot.ledger["cpu"]
    assert ledger.allocated == native.install()[0].allocated()
    assert (ledger.unnamed, ledger.allocated - ledger.named) == (unnamed, unnamed)
    counted = [each for each in snapshot.tensors if each.device == "cpu" and each.alias_of is None]
    ours = [each for each in counted if "not torch's allocator" not in (each.note or "")]
    assert sum(each.storage_nbytes for each in ours) == ledger.named
    assert all(each.name for each in snapshot.tensors)
    return snapshot


class Since:
    """What is in memory now and was not when this was made, as records by name."""

    def __init__(self, *roots, **named):
        gc.collect()
        self.before = tensorlens.MemReporter().snapshot()
        self._storages = {each.storage for each in self.before.tensors} - {0}
        self._names = {each.name for each in self.before.tensors if not each.storage}

    def records(self, *roots, unnamed=0, **named):
        """Take a balanced snapshot; return its new rows."""
        before = self.before.ledger["cpu"].unnamed
        self.last = balanced(tensorlens.MemReporter(*roots, **named).snapshot(), before + unnamed)
        return [
            each
            for each in self.last.tensors
            if (each.storage not in self._storages if each.storage else not self._is_old(each))
        ]

    def _is_old(self, record):
        return record.name in self._names

    def __call__(self, *roots, unnamed=0, **named):
        """Take a balanced snapshot; return its new rows by name, which must differ."""
        records = self.records(*roots, unnamed=unnamed, **named)
        assert len({each.name for each in records}) == len(records), records
        return {each.name: each for each in records}

    def sizes(self, *roots, unnamed=0, **named):
        """Return role and bytes of each new row by name."""
        found = self(*roots, unnamed=unnamed, **named)
        return {name: (each.role, each.nbytes) for name, each in found.items()}

    def grown(self):
        """Return by how much the allocator's count has grown, by its last snapshot."""
        return self.last.ledger["cpu"].allocated - self.before.ledger["cpu"].allocated


def parameters(prefix=""):
    """Return what an Mlp's parameters are by name: elements times four bytes."""
    return {
        f"{prefix}fc1.weight": ("parameter", 2400),
        f"{prefix}fc1.bias": ("parameter", 120),
        f"{prefix}fc2.weight": ("parameter", 1200),
        f"{prefix}fc2.bias": ("parameter", 40),
    }


def gradients(prefix=""):
    owned = parameters(prefix).items()
    return {f"{name}.grad": ("gradient", size) for name, (_, size) in owned}
