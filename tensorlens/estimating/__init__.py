"""Before the run: what a step will need on a card that is not there."""

from tensorlens.estimating.asking import estimate, estimate_cards
from tensorlens.estimating.batches import MaxBatch, max_batch
from tensorlens.estimating.scaling import Scaling, scaling

__all__ = ["MaxBatch", "Scaling", "estimate", "estimate_cards", "max_batch", "scaling"]
