"""Pure simulators of allocators: requests and frees in, addresses and segments out.

What :mod:`~tensorlens.planning.estimate` needs is imported here; the rest is for tests.
"""

from tensorlens.lazy import attach
from tensorlens.planning.allocators.bfc import BFCAllocator
from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.simulated import (
    Figures,
    Level,
    SimulatedAllocator,
    SimulatedOutOfMemory,
)

__all__ = [
    "BFCAllocator",
    "CachingAllocator",
    "Figures",
    "Level",
    "SimulatedAllocator",
    "SimulatedOutOfMemory",
]

attach(
    __name__,
    {
        "cuda": ("CachingAllocator", "parse_settings", "settings_text"),
        "simulated": ("ALLOCATED", "Block", "FREE"),
    },
)
