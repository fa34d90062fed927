"""Logs as torch writes them: its memory snapshots."""

from tensorlens.records.torch_snapshots.snapshots import from_snapshot, read

__all__ = ["from_snapshot", "read"]
