"""Finds the Python objects that keep a block of torch's memory alive, and what hangs below them."""

from tensorlens.frameworks.survivors import Holder, Retained, Survivor
from tensorlens.frameworks.torch.leaks.holdings import Holdings

__all__ = ["Holder", "Holdings", "Retained", "Survivor"]
