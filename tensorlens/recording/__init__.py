"""What a log of events tells: pure functions of a recording, without any framework."""

from tensorlens.recording.backward import backward, backward_modules
from tensorlens.recording.change import churn, growth
from tensorlens.recording.fragmentation import fragmentation
from tensorlens.recording.instants import blocks, moment, peak
from tensorlens.recording.named_instants import row_at
from tensorlens.recording.timeline import timeline

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
