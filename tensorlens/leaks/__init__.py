"""Growth from step to step, and who holds it."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "graph_growth": ("GraphGrowth",),
        "growth.groups": (),
        "growth.growth_test": (),
        "growth.retained": (),
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
        "loop_steps": ("LoopSteps",),
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
        "residue": ("Stretch",),
        "watch": ("LoopJudge",),
    },
)
