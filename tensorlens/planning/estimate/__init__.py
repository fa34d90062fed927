"""Before the run: what a step will need on a card that is not there.

A program is checked (:mod:`.target`) and asked about (:mod:`.api`); a process of its own runs it on
fake tensors (``planning/processes.py``, ``planning/torch``) and sends back a
:class:`~tensorlens.planning.trace.Trace` of its requests. These are made of simulated allocators
(:mod:`.simulation`), and with what lies outside of the framework's memory the answer is put
together (:mod:`.assembly`). :mod:`.batches` and :mod:`.scaling` ask several times. No module here
imports torch. The method, each figure's rule and the accuracy are in ``docs/estimate.md``.
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
