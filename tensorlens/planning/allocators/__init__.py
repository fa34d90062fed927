"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.lazy import attach
from tensorlens.planning.allocators.bfc import BFCAllocator
from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import (
    Figures,
    Level,
    NoRoom,
    SimulatedAllocator,
)

__all__ = [
    "BFCAllocator",
    "CachingAllocator",
    "Figures",
    "Level",
    "NoRoom",
    "Settings",
    "SimulatedAllocator",
]

attach(
    __name__,
    {
        "cuda": ("CachingAllocator",),
        "settings": ("settings_text",),
        "simulated": ("ALLOCATED", "Block", "FREE", "Memory"),
    },
)
