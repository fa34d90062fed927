"""tensorlens: which line, which tensor, which moment takes the memory.

The public names are loaded on first use; importing tensorlens imports no framework and touches
no device.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from tensorlens.lazy import attach

__version__ = "0.1.0"

_PUBLIC = {
    "errors": ("TensorlensError",),
    "jobs.merge": ("gather",),
    "jobs.report": ("JobReport",),
    "leaks.report": ("LeakReport",),
    "leaks.watch": ("LeakWatch", "find_leaks"),
    "lines.profile": ("clear_global_line_profiler", "profile", "profile_every", "set_target_gpu"),
    "lines.profiler": ("LineProfiler",),
    "lines.report": ("LineReport",),
    "loading": ("load",),
    "planning.card": ("Card",),
    "planning.compare.api": ("compare",),
    "planning.compare.result": ("Comparison",),
    "planning.estimate.api": ("estimate", "estimate_cards"),
    "planning.estimate.batches": ("MaxBatch", "max_batch"),
    "planning.estimate.result": ("Estimate",),
    "planning.estimate.scaling": ("Scaling", "scaling"),
    "planning.inputs.api": ("Plan", "inputs"),
    "planning.suggest.api": ("suggest",),
    "planning.suggest.result": ("Suggestions",),
    "recording.oom.annotation": ("explain_oom",),
    "recording.record": ("record",),
    "recording.recordings": ("Recording",),
    "records.queues": ("Queue",),
    "tensors.difference": ("Difference",),
    "tensors.reporter": ("MemReporter",),
    "tensors.snapshot": ("Snapshot",),
}
"""Module to its public names."""

__all__ = sorted(name for names in _PUBLIC.values() for name in names)

attach(
    __name__,
    {
        **_PUBLIC,
        "keras": (),
        "integrations.ipython": ("load_ipython_extension", "unload_ipython_extension"),
    },
)

if TYPE_CHECKING:
    from tensorlens import keras as keras
    from tensorlens.errors import TensorlensError as TensorlensError
    from tensorlens.jobs.merge import gather as gather
    from tensorlens.jobs.report import JobReport as JobReport
    from tensorlens.leaks.report import LeakReport as LeakReport
    from tensorlens.leaks.watch import LeakWatch as LeakWatch
    from tensorlens.leaks.watch import find_leaks as find_leaks
    from tensorlens.lines.profile import clear_global_line_profiler as clear_global_line_profiler
    from tensorlens.lines.profile import profile as profile
    from tensorlens.lines.profile import profile_every as profile_every
    from tensorlens.lines.profile import set_target_gpu as set_target_gpu
    from tensorlens.lines.profiler import LineProfiler as LineProfiler
    from tensorlens.lines.report import LineReport as LineReport
    from tensorlens.loading import load as load
    from tensorlens.planning.card import Card as Card
    from tensorlens.planning.compare.api import compare as compare
    from tensorlens.planning.compare.result import Comparison as Comparison
    from tensorlens.planning.estimate.api import estimate as estimate
    from tensorlens.planning.estimate.api import estimate_cards as estimate_cards
    from tensorlens.planning.estimate.batches import MaxBatch as MaxBatch
    from tensorlens.planning.estimate.batches import max_batch as max_batch
    from tensorlens.planning.estimate.result import Estimate as Estimate
    from tensorlens.planning.estimate.scaling import Scaling as Scaling
    from tensorlens.planning.estimate.scaling import scaling as scaling
    from tensorlens.planning.inputs.api import Plan as Plan
    from tensorlens.planning.inputs.api import inputs as inputs
    from tensorlens.planning.suggest.api import suggest as suggest
    from tensorlens.planning.suggest.result import Suggestions as Suggestions
    from tensorlens.recording.oom.annotation import explain_oom as explain_oom
    from tensorlens.recording.record import record as record
    from tensorlens.recording.recordings import Recording as Recording
    from tensorlens.records.queues import Queue as Queue
    from tensorlens.tensors.difference import Difference as Difference
    from tensorlens.tensors.reporter import MemReporter as MemReporter
    from tensorlens.tensors.snapshot import Snapshot as Snapshot


if os.environ.get("TENSORLENS_LIVE"):
    importlib.import_module("tensorlens.live").prepare()
