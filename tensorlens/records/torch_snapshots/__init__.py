"""Logs as others write them: torch's memory snapshots and what its viewer is fed."""

from tensorlens.records.torch_snapshots.snapshots import from_snapshot, read
from tensorlens.records.torch_snapshots.viewer import from_viewer, is_viewer

__all__ = ["from_snapshot", "from_viewer", "is_viewer", "read"]
