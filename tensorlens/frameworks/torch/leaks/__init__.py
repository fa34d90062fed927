"""Finds the Python objects that keep a block of torch's memory alive, and what hangs below them."""

from tensorlens.frameworks.survivors import Below, Holder, SavedBy, Survivor
from tensorlens.frameworks.torch.leaks.holdings import Holdings, survivors

__all__ = ["Below", "Holder", "Holdings", "SavedBy", "Survivor", "survivors"]
