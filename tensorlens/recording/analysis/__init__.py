"""Analyses of a log of events: pure functions of a recording, without any framework."""

from tensorlens.recording.analysis.costs import backward, backward_modules, churn, growth
from tensorlens.recording.analysis.instants import blocks, moment, peak, row_at
from tensorlens.recording.analysis.levels import fragmentation, timeline

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
