"""Files of torch as logs: its memory snapshots, and traces of its profiler."""

from tensorlens.records.torch_files.snapshots import from_snapshot, read

__all__ = ["from_snapshot", "read"]
