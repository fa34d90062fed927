"""Thin adapters to other tools, imported only by them."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "epoch_report": ("EVALUATE", "EpochLevel", "FIT", "PREDICT", "SteadyGrowth"),
        "pytest.assertions": (),
        "pytest.baseline": ("Baseline", "tolerance_of"),
        "pytest.limits": ("Limits",),
        "sampler": ("Follower", "Trend"),
        "step_monitor": ("StepMonitor",),
    },
)
