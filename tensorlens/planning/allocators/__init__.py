"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.planning.allocators.bfc import BFCAllocator, least_limit
from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.journal import Journal
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import Figures, Level, OutOfMemory

__all__ = [
    "BFCAllocator",
    "CachingAllocator",
    "Figures",
    "Journal",
    "Level",
    "OutOfMemory",
    "Settings",
    "least_limit",
]
