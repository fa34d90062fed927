"""Analyses of a log of events: pure functions of a recording, without any framework."""

from tensorlens.recording.analysis.backward import backward, backward_modules
from tensorlens.recording.analysis.change import churn, growth
from tensorlens.recording.analysis.instants import blocks, moment, peak, row_at
from tensorlens.recording.analysis.segments import fragmentation
from tensorlens.recording.analysis.timeline import timeline

__all__ = [
    "backward",
    "backward_modules",
    "blocks",
    "churn",
    "fragmentation",
    "growth",
    "moment",
    "peak",
    "row_at",
    "timeline",
]
