"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.allocators.bfc import BFCAllocator, least_limit
from tensorlens.allocators.bfc_settings import BFCSettings
from tensorlens.allocators.cuda import CachingAllocator
from tensorlens.allocators.figures import Figures, Level, OutOfMemory
from tensorlens.allocators.journal import Journal
from tensorlens.allocators.settings import Settings

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
