"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.allocators.cuda import CachingAllocator
from tensorlens.allocators.figures import Figures, Level, OutOfMemory
from tensorlens.allocators.journal import Journal
from tensorlens.allocators.settings import Settings

__all__ = ["CachingAllocator", "Figures", "Journal", "Level", "OutOfMemory", "Settings"]
