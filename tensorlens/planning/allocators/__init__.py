"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.lazy import attach
from tensorlens.planning.allocators.bfc import BFCAllocator
from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.settings import Settings
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
    "Settings",
    "SimulatedAllocator",
    "SimulatedOutOfMemory",
]

attach(
    __name__,
    {
        "cuda": ("CachingAllocator",),
        "settings": ("settings_text",),
        "simulated": ("ALLOCATED", "Block", "FREE", "Memory"),
    },
)
