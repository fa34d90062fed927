"""Growth from step to step, and who holds it."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "graph_growth": ("GraphGrowth",),
        "growth.groups": (),
        "growth.growth_test": (),
        "growth.retained": (),
        "host": (
            "HostGrowth",
            "HostSample",
            "HostSampler",
            "growing_arrays",
            "host_growth",
            "steady_rate",
        ),
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
