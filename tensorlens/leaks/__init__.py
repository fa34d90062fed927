"""Leaks: memory that grows from step to step, and its holders."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "graph_growth": ("GraphGrowth",),
        # whole modules, for unit tests
        "growth.groups": (),
        "growth.growth_test": (),
        "growth.containers": ("end_of", "filling", "has_end"),
        "host_growth": (
            "HostGrowth",
            "growing_arrays",
            "heap_growth",
            "host_rates",
            "objects_growth",
            "pinned_growth",
            "steady_rate",
            "worker_growth",
        ),
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
        "watched_loop": ("FollowedLoop", "HostSample", "Span", "total_figures"),
    },
)
