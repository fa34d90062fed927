"""Recordings as others write them: torch's memory snapshots and what its viewer is fed."""

from tensorlens.recording.foreign.pickles import looks_like_pickle
from tensorlens.recording.foreign.snapshots import from_snapshot, read
from tensorlens.recording.foreign.viewer import from_viewer, is_viewer

__all__ = ["from_snapshot", "from_viewer", "is_viewer", "looks_like_pickle", "read"]
