"""Pure simulators of allocators: requests and frees in, addresses and segments out."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "bfc": ("BFCAllocator",),
        "cuda": ("CachingAllocator", "parse_settings", "settings_text"),
        "simulated": ("ALLOCATED", "Block", "FREE", "Level", "SimulatedOutOfMemory"),
    },
)
