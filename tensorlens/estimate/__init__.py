"""Before the run: what a step will need on a card that is not there."""

from tensorlens.estimate.asking import estimate

__all__ = ["estimate"]
