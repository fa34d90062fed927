"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.planning.allocators.bfc import BFCAllocator, least_limit
from tensorlens.planning.allocators.bfc_settings import BFCSettings
from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.figures import Figures, Level, OutOfMemory
from tensorlens.planning.allocators.journal import Journal
from tensorlens.planning.allocators.settings import Settings

__all__ = [
    "BFCAllocator",
    "BFCSettings",
    "CachingAllocator",
    "Figures",
    "Journal",
    "Level",
    "OutOfMemory",
    "Settings",
    "least_limit",
]
