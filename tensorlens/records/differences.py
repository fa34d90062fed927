"""What changed between two snapshots, by name."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.records.snapshots import Snapshot
from tensorlens.records.tensors import TensorRecord


@dataclass(frozen=True, slots=True)
class Change:
    """One name that stands for other memory than before."""

    before: TensorRecord | None
    """None: it appeared."""
    after: TensorRecord | None
    """None: it is gone."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What appeared, went and grew from one snapshot to a later one."""

    appeared: tuple[Change, ...]
    gone: tuple[Change, ...]
    grown: tuple[Change, ...]


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Return what changed from ``before`` to ``after``."""
    raise NotImplementedError
