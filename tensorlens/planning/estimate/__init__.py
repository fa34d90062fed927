"""Estimates of the memory that a program's steps will need, on a card that need not be there.

:mod:`.target` finds the program and :mod:`.api` checks the request. Another process runs the
program on fake tensors (``planning/processes.py``, ``planning/torch``) and returns a
:class:`~tensorlens.planning.trace.Trace` of its requests. :mod:`.simulation` replays them on
simulated allocators, and :mod:`.assembly` adds the memory outside of the framework.
:mod:`.batches` and :mod:`.scaling` make several estimates. No module here imports torch. The
method, the rule of each figure and the accuracy are in ``docs/estimate.md``.
"""

from tensorlens.lazy import attach
from tensorlens.planning.estimate.api import estimate, estimate_cards
from tensorlens.planning.estimate.batches import MaxBatch, max_batch
from tensorlens.planning.estimate.scaling import Scaling, scaling

__all__ = ["MaxBatch", "Scaling", "estimate", "estimate_cards", "max_batch", "scaling"]

attach(
    __name__,
    {
        "assembly": ("assemble", "context_overhead"),
        "batches": ("largest_that_fits",),
        "figures": ("requirement",),
        "result": ("EstimateTerm", "EstimatedStep", "Fit", "LargestBatch", "Range"),
        "scaling": ("OPTIMIZER", "PASS", "SETUP", "fit_curve", "peaks_by_place"),
        "simulation": ("Simulation", "least_capacity"),
        "target": ("framework_of", "program", "search_path"),
    },
)
