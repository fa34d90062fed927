"""Leaks: memory that grows from step to step, and its holders."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "graph_growth": ("GraphGrowth",),
        # whole modules, for unit tests
        "growth.bounds": (),
        "growth.groups": (),
        "growth.growth_test": (),
        "growth.samples": ("Span",),
        "host.arrays": ("HostGrowth", "growing_arrays"),
        "host.growth": (
            "heap_growth",
            "host_rates",
            "objects_growth",
            "pinned_growth",
            "steady_rate",
            "worker_growth",
        ),
        "host.samples": ("HostSample", "HostSampler"),
        "followed_loop": ("FollowedLoop",),
        "report": (
            "Balance",
            "BelowLine",
            "Certainty",
            "Example",
            "Growth",
            "GrowthKind",
            "Leak",
            "LeakKind",
        ),
        "scope": ("AllocationScope",),
        "watch": ("LoopJudge",),
    },
)
