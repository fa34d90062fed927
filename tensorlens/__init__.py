"""tensorlens: which line, which tensor, which moment takes the memory.

The public names are loaded on first use; importing tensorlens imports no framework and touches
no device.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "profile": "tensorlens.lines.profile",
    "profile_every": "tensorlens.lines.profile",
    "set_target_gpu": "tensorlens.lines.profile",
    "clear_global_line_profiler": "tensorlens.lines.profile",
    "LineProfiler": "tensorlens.lines.profiler",
    "LineReport": "tensorlens.lines.report",
    "LeakReport": "tensorlens.leaks.report",
    "LeakWatch": "tensorlens.leaks.watch",
    "find_leaks": "tensorlens.leaks.watch",
    "Plan": "tensorlens.planning.inputs.plan",
    "Queue": "tensorlens.records.queues",
    "inputs": "tensorlens.planning.inputs.api",
    "MemReporter": "tensorlens.tensors.reporter",
    "Snapshot": "tensorlens.tensors.snapshot",
    "Difference": "tensorlens.tensors.difference",
    "Recording": "tensorlens.recording.recordings",
    "record": "tensorlens.recording.record",
    "explain_oom": "tensorlens.recording.oom.hooks",
    "Estimate": "tensorlens.planning.estimate.result",
    "Comparison": "tensorlens.planning.compare.result",
    "compare": "tensorlens.planning.compare.api",
    "Suggestions": "tensorlens.planning.suggest.result",
    "suggest": "tensorlens.planning.suggest.api",
    "Card": "tensorlens.planning.card",
    "MaxBatch": "tensorlens.planning.estimate.batches",
    "Scaling": "tensorlens.planning.estimate.scaling",
    "estimate": "tensorlens.planning.estimate.api",
    "estimate_cards": "tensorlens.planning.estimate.api",
    "JobReport": "tensorlens.jobs.report",
    "gather": "tensorlens.jobs.gather",
    "max_batch": "tensorlens.planning.estimate.batches",
    "scaling": "tensorlens.planning.estimate.scaling",
    "TensorlensError": "tensorlens.errors",
    "load": "tensorlens.loading",
    "load_ipython_extension": "tensorlens.integrations.ipython",
    "unload_ipython_extension": "tensorlens.integrations.ipython",
}

__all__ = [
    "Card",
    "Comparison",
    "Difference",
    "Estimate",
    "JobReport",
    "LeakReport",
    "LeakWatch",
    "LineProfiler",
    "LineReport",
    "MaxBatch",
    "MemReporter",
    "Plan",
    "Queue",
    "Recording",
    "Scaling",
    "Snapshot",
    "Suggestions",
    "TensorlensError",
    "clear_global_line_profiler",
    "compare",
    "estimate",
    "estimate_cards",
    "explain_oom",
    "find_leaks",
    "gather",
    "inputs",
    "load",
    "max_batch",
    "profile",
    "profile_every",
    "record",
    "scaling",
    "set_target_gpu",
    "suggest",
]

if TYPE_CHECKING:
    from tensorlens.errors import TensorlensError
    from tensorlens.jobs.gather import gather
    from tensorlens.jobs.report import JobReport
    from tensorlens.leaks.report import LeakReport
    from tensorlens.leaks.watch import LeakWatch, find_leaks
    from tensorlens.lines.profile import (
        clear_global_line_profiler,
        profile,
        profile_every,
        set_target_gpu,
    )
    from tensorlens.lines.profiler import LineProfiler
    from tensorlens.lines.report import LineReport
    from tensorlens.loading import load
    from tensorlens.planning.card import Card
    from tensorlens.planning.compare.api import compare
    from tensorlens.planning.compare.result import Comparison
    from tensorlens.planning.estimate.api import estimate, estimate_cards
    from tensorlens.planning.estimate.batches import MaxBatch, max_batch
    from tensorlens.planning.estimate.result import Estimate
    from tensorlens.planning.estimate.scaling import Scaling, scaling
    from tensorlens.planning.inputs.api import inputs
    from tensorlens.planning.inputs.plan import Plan
    from tensorlens.planning.suggest.api import suggest
    from tensorlens.planning.suggest.result import Suggestions
    from tensorlens.recording.oom.hooks import explain_oom
    from tensorlens.recording.record import record
    from tensorlens.recording.recordings import Recording
    from tensorlens.records.queues import Queue
    from tensorlens.tensors.difference import Difference
    from tensorlens.tensors.reporter import MemReporter
    from tensorlens.tensors.snapshot import Snapshot


_MODULES = ("keras",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tensorlens.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tensorlens' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})


if os.environ.get("TENSORLENS_LIVE"):
    importlib.import_module("tensorlens.live").prepare()
