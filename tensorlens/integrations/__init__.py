"""Thin adapters to other tools, imported only by them."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "epoch_report": ("EVALUATE", "EpochLevel", "FIT", "PREDICT", "SteadyGrowth"),
        "pytest_baseline": ("Baseline", "tolerance_of"),
        "pytest_limits": ("Limits",),
        "sampler": ("Follower", "Trend"),
        "step_monitor": ("StepMonitor",),
    },
)
