"""Which Python objects keep a block of torch's memory alive, and what hangs below them."""

from tensorlens.frameworks.torch.leaks.holdings import Holdings, survivors
from tensorlens.frameworks.torch.leaks.survivor import Below, Holder, SavedBy, Survivor

__all__ = ["Below", "Holder", "Holdings", "SavedBy", "Survivor", "survivors"]
